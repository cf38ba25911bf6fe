"""Captioned pictures of plain shapes for pre-training the drawing model, drawn as they are asked for.

A shape is a form in a color on a background; place, size and shade vary. One color of each form is held out: the
model never sees that pair, so that drawing it shows that words are understood and not whole captions remembered.
The subjects of giornata.diffusion.tiny.drawings are drawn with the same pen, and are never among these pictures.
The same arguments give the same bytes (with one PIL version).

`python -m giornata.diffusion.shapes.pictures DIR` writes some with their captions: class pictures for a LoRA.
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from PIL import Image

from giornata.diffusion.tiny.drawings import (
    BACKGROUNDS,
    CENTER,
    JITTER,
    RGB,
    Pen,
    Placing,
    Point,
    ellipse,
    paint,
    shifted,
)

SIZE_PX = 64
RADIUS = (18 / 64, 24 / 64)  # of the side
STAR_WAIST = 0.47  # a pentagram has 0.38; thin points do not survive 8 x 8 latents
RING_HOLE = 0.58
PALETTE: Mapping[str, RGB] = MappingProxyType(
    {
        "red": (214, 40, 40),
        "green": (40, 160, 60),
        "blue": (40, 80, 210),
        "yellow": (245, 215, 50),
        "purple": (130, 50, 170),
        "orange": (245, 130, 30),
        "pink": (250, 140, 190),
        "cyan": (60, 205, 225),
    }
)
# Share of the pictures whose caption says all three; the others leave one, two or all of them out.
FULL_CAPTIONS = 0.7


def _star() -> list[Point]:
    radii = [1.0, STAR_WAIST] * 5
    angles = [math.pi * corner / 5 - math.pi / 2 for corner in range(10)]
    return [(radius * math.cos(a), radius * math.sin(a)) for radius, a in zip(radii, angles, strict=True)]


def _cross() -> list[Point]:
    length, half_width = 0.98, 0.36
    quarter = [(half_width, -length), (half_width, -half_width), (length, -half_width)]
    points = list(quarter)
    for _ in range(3):
        quarter = [(-y, x) for x, y in quarter]
        points += quarter
    return points


def _ring() -> list[Point]:
    # Once around outside, a step in, and once around the hole the other way.
    outer, hole = ellipse((0, 0), 1.0, 1.0), ellipse((0, 0), RING_HOLE, RING_HOLE)
    return [*outer, outer[0], hole[0], *reversed(hole)]


FORMS: Mapping[str, tuple[Point, ...]] = MappingProxyType(
    {
        "circle": tuple(ellipse((0, 0), 1.0, 1.0)),
        "square": ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
        "triangle": ((0.0, -0.98), (1.02, 0.82), (-1.02, 0.82)),
        "star": tuple(_star()),
        "cross": tuple(_cross()),
        "ring": tuple(_ring()),
    }
)
# form -> the color it is never seen in
HELD_OUT: Mapping[str, str] = MappingProxyType(
    {"circle": "purple", "square": "cyan", "triangle": "orange", "star": "blue", "cross": "pink", "ring": "red"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape that a picture shows, or that a prompt asks for; None is left open."""

    form: str | None = None
    color: str | None = None
    background: str | None = None

    @property
    def held_out(self) -> bool:
        return self.form is not None and HELD_OUT.get(self.form) == self.color

    @property
    def caption(self) -> str:
        """Return `a red star on a white background`; `a shape` when everything is open."""
        noun = self.form or "shape"
        article = "an" if (self.color or noun)[0] in "aeiou" else "a"
        said = " ".join(word for word in (article, self.color, noun) if word)
        return said if self.background is None else f"{said} on a {self.background} background"


def grid() -> list[Shape]:
    """Return every form in every color on every background, those held out too."""
    return [
        Shape(form=form, color=color, background=background)
        for form in FORMS
        for color in PALETTE
        for background in BACKGROUNDS
    ]


TRAINED = tuple(shape for shape in grid() if not shape.held_out)


def captions() -> list[str]:
    """Return every caption that training uses, sorted; the empty one too."""
    every = {wording.caption for shape in TRAINED for wording in _wordings(shape)}
    return sorted({"", *every})


def _wordings(shape: Shape) -> list[Shape]:
    """Return the shape as captions describe it: all of it first, then with something left out."""
    return [
        Shape(form=form, color=color, background=background)
        for background in (shape.background, None)
        for form in (shape.form, None)
        for color in (shape.color, None)
    ]


def filled(points: tuple[Point, ...], color: RGB) -> Callable[[Pen], None]:
    """Draw one outline in one color."""

    def draw(pen: Pen) -> None:
        pen.polygon(points, color)

    return draw


def draw_shape(shape: Shape, chance: random.Random, *, size_px: int = SIZE_PX) -> Image.Image:
    """Draw a picture of a shape of which nothing is left open."""
    if shape.form is None or shape.color is None or shape.background is None:
        raise ValueError(f"{shape} leaves something open")
    shift = [chance.randint(-JITTER, JITTER) for _ in range(6)]
    placing = Placing(
        center=(chance.uniform(*CENTER), chance.uniform(*CENTER)),
        radius=chance.uniform(*RADIUS),
        shift=(shift[0], shift[1], shift[2]),
    )
    ground = shifted(BACKGROUNDS[shape.background], shift[3:])
    return paint(filled(FORMS[shape.form], PALETTE[shape.color]), ground=ground, placing=placing, size_px=size_px)


def captioned(index: int, *, seed: int = 0) -> Image.Image:
    """Return the `index`-th captioned picture; never of a pair that is held out. Shapes take turns."""
    return draw_shape(TRAINED[index % len(TRAINED)], random.Random(f"{seed}:captioned:{index}"))


def caption_of(index: int, *, seed: int = 0) -> str:
    """Return the caption of the `index`-th picture."""
    chance = random.Random(f"{seed}:caption:{index}")
    wordings = _wordings(TRAINED[index % len(TRAINED)])
    told = wordings[0] if chance.random() < FULL_CAPTIONS else chance.choice(wordings[1:])
    return told.caption


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line: write pictures of every form, each with a .txt beside it."""
    parser = argparse.ArgumentParser(prog="python -m giornata.diffusion.shapes.pictures")
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("--count", type=int, choices=range(1, len(TRAINED) + 1), default=64, metavar="N")
    options = parser.parse_args(argv)
    options.directory.mkdir(parents=True, exist_ok=True)
    for number in range(options.count):
        index = number * len(TRAINED) // options.count
        path = options.directory / f"{number:03d}.png"
        captioned(index).save(path)
        path.with_suffix(".txt").write_text(caption_of(index), encoding="utf-8")


if __name__ == "__main__":
    main()
