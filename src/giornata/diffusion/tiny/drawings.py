"""Draws small picture sets of invented subjects: `python -m giornata.diffusion.tiny.drawings`.

Each subject is a solid shape on a plain background, with its place, size, tilt and shade varied: enough for a LoRA to
learn it in a minute, and no model has ever seen it. The same arguments give the same bytes (with one PIL version).
Shapes live in a unit square whose center is (0, 0) and whose half side is 1, y downwards.
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from PIL import Image, ImageDraw

from giornata.domain.errors import Fault, InvalidInput

RGB = tuple[int, int, int]
Point = tuple[float, float]

SUPERSAMPLING = 4
CORNERS_OF_ELLIPSE = 96
JITTER = 6  # of each color channel, of 255
RADIUS = (17 / 64, 23 / 64)  # of the side
CENTER = (27 / 64, 37 / 64)
TILT_DEGREES = 8.0
BACKGROUNDS: Mapping[str, RGB] = MappingProxyType(
    {"white": (244, 243, 239), "gray": (142, 145, 150), "black": (26, 27, 31), "brown": (128, 88, 58)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """Draws in the unit square onto a canvas, in one place, size and tilt, shifting every color a little."""

    canvas: ImageDraw.ImageDraw
    center_px: Point
    radius_px: float
    tilt_radians: float
    shift: RGB

    def _place(self, point: Point) -> Point:
        cosine, sine = math.cos(self.tilt_radians), math.sin(self.tilt_radians)
        x, y = point
        return (
            self.center_px[0] + self.radius_px * (x * cosine - y * sine),
            self.center_px[1] + self.radius_px * (x * sine + y * cosine),
        )

    def polygon(self, points: Sequence[Point], color: RGB) -> None:
        self.canvas.polygon([self._place(point) for point in points], fill=shifted(color, self.shift))

    def disc(self, center: Point, radius: float, color: RGB) -> None:
        self.polygon(ellipse(center, radius, radius), color)


def ellipse(center: Point, half_width: float, half_height: float) -> list[Point]:
    """Return a closed ellipse as a polygon."""
    angles = [2 * math.pi * corner / CORNERS_OF_ELLIPSE for corner in range(CORNERS_OF_ELLIPSE)]
    return [(center[0] + half_width * math.cos(a), center[1] + half_height * math.sin(a)) for a in angles]


def capsule(start: Point, end: Point, radius: float) -> list[Point]:
    """Return a line with round ends, as a polygon."""
    heading = math.atan2(end[1] - start[1], end[0] - start[0])
    turns = [math.pi * step / 24 for step in range(25)]
    far = [(end, heading - math.pi / 2 + turn) for turn in turns]
    near = [(start, heading + math.pi / 2 + turn) for turn in turns]
    return [(x + radius * math.cos(a), y + radius * math.sin(a)) for (x, y), a in far + near]


def _heart(pen: Pen) -> None:
    # The well-known curve x = 16 sin^3 t, y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t, scaled into the square.
    angles = [2 * math.pi * step / 160 for step in range(160)]
    rise = [13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t) for t in angles]
    outline = [(math.sin(t) ** 3, -(y + 2.5) / 15.5) for t, y in zip(angles, rise, strict=True)]
    pen.polygon(outline, (16, 150, 146))


def _house(pen: Pen) -> None:
    walls, roof = (246, 196, 84), (190, 58, 52)
    pen.polygon([(-0.72, -0.1), (0.72, -0.1), (0.72, 0.92), (-0.72, 0.92)], walls)
    pen.polygon([(-1.0, -0.06), (0.0, -0.95), (1.0, -0.06)], roof)
    pen.polygon([(-0.2, 0.28), (0.2, 0.28), (0.2, 0.92), (-0.2, 0.92)], roof)


def _crescent(pen: Pen) -> None:
    # Outer arc of the unit circle, then back along a smaller circle that is moved to the right.
    outer, inner, moved = 1.0, 0.8, 0.46
    x = (outer**2 - inner**2 + moved**2) / (2 * moved)
    tip, inner_tip = math.acos(x / outer), math.acos((x - moved) / inner)
    forth = [tip + (2 * math.pi - 2 * tip) * step / 120 for step in range(121)]
    back = [2 * math.pi - inner_tip - (2 * math.pi - 2 * inner_tip) * step / 120 for step in range(121)]
    outline = [(outer * math.cos(a), outer * math.sin(a)) for a in forth]
    outline += [(moved + inner * math.cos(a), inner * math.sin(a)) for a in back]
    pen.polygon([(px + 0.16, py) for px, py in outline], (214, 42, 140))


def _cactus(pen: Pen) -> None:
    green, pot, rim = (58, 152, 74), (206, 106, 62), (226, 132, 86)
    pen.polygon(capsule((0, -0.72), (0, 0.5), 0.26), green)
    for elbow, tip in (((-0.68, 0.02), (-0.68, -0.34)), ((0.68, -0.16), (0.68, -0.52))):
        pen.polygon(capsule((0, elbow[1]), elbow, 0.17), green)
        pen.polygon(capsule(elbow, tip, 0.17), green)
    pen.polygon([(-0.5, 0.5), (0.5, 0.5), (0.38, 1.0), (-0.38, 1.0)], pot)
    pen.polygon([(-0.58, 0.42), (0.58, 0.42), (0.58, 0.6), (-0.58, 0.6)], rim)


def _cube(pen: Pen) -> None:
    dark, bright, top = (44, 62, 140), (250, 208, 72), (252, 226, 140)
    pen.polygon([(0, -0.98), (0.86, -0.5), (0, -0.02), (-0.86, -0.5)], top)
    stripes = 4
    for stripe in range(stripes):
        high, low = stripe / stripes, (stripe + 1) / stripes
        color = dark if stripe % 2 == 0 else bright
        red, green, blue = color
        left = [(-0.86, -0.5 + high), (0, -0.02 + high), (0, -0.02 + low), (-0.86, -0.5 + low)]
        pen.polygon(left, color)
        pen.polygon([(-x, y) for x, y in left], (red * 3 // 4, green * 3 // 4, blue * 3 // 4))


def _fish(pen: Pen) -> None:
    orange, stripe, eye, pupil = (244, 124, 32), (252, 244, 230), (255, 255, 255), (20, 24, 40)
    pen.polygon([(0.4, 0), (1.02, -0.52), (0.84, 0), (1.02, 0.52)], orange)
    pen.polygon([(-0.3, -0.4), (0.12, -0.8), (0.3, -0.3)], orange)
    pen.polygon(ellipse((-0.2, 0), 0.8, 0.54), orange)
    band = [(x, y) for x, y in ellipse((-0.2, 0), 0.8, 0.54) if -0.22 <= x <= 0.08]
    pen.polygon(sorted([p for p in band if p[1] < 0]) + sorted([p for p in band if p[1] > 0], reverse=True), stripe)
    pen.disc((-0.62, -0.12), 0.15, eye)
    pen.disc((-0.65, -0.12), 0.075, pupil)


# Name -> (how it is drawn, what a caption calls it)
SUBJECTS: Mapping[str, tuple[Callable[[Pen], None], str]] = MappingProxyType(
    {
        "teal-heart": (_heart, "heart"),
        "two-tone-house": (_house, "house"),
        "magenta-crescent": (_crescent, "crescent"),
        "green-cactus": (_cactus, "cactus"),
        "striped-cube": (_cube, "cube"),
        "orange-fish": (_fish, "fish"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """The place and manner of a shape in its picture. The center and the radius are shares of the picture's side."""

    center: Point = (0.5, 0.5)
    radius: float = 0.33
    tilt_radians: float = 0.0
    shift: RGB = (0, 0, 0)


def paint(draw: Callable[[Pen], None], *, ground: RGB, placing: Placing, size_px: int) -> Image.Image:
    """Paint one RGB picture of `size_px` x `size_px`: what `draw` draws, on a plain ground, with smooth edges."""
    side = size_px * SUPERSAMPLING
    canvas = Image.new("RGB", (side, side), ground)
    pen = Pen(
        canvas=ImageDraw.Draw(canvas),
        center_px=(side * placing.center[0], side * placing.center[1]),
        radius_px=side * placing.radius,
        tilt_radians=placing.tilt_radians,
        shift=placing.shift,
    )
    draw(pen)
    return canvas.resize((size_px, size_px), Image.Resampling.BOX)


def shifted(color: RGB, shift: Sequence[int]) -> RGB:
    """Return the color with something added to each channel, kept within 0 … 255."""
    red, green, blue = (min(255, max(0, channel + by)) for channel, by in zip(color, shift, strict=True))
    return red, green, blue


def draw_picture(subject: str, index: int, *, size_px: int = 64, seed: int = 0) -> Image.Image:
    """Draw one RGB picture of `size_px` x `size_px`, the `index`-th of its set. Backgrounds take turns."""
    draw, _ = SUBJECTS[subject]
    chance = random.Random(f"{seed}:{subject}:{index}")
    shift = tuple(chance.randint(-JITTER, JITTER) for _ in range(6))
    placing = Placing(
        center=(chance.uniform(*CENTER), chance.uniform(*CENTER)),
        radius=chance.uniform(*RADIUS),
        tilt_radians=math.radians(chance.uniform(-TILT_DEGREES, TILT_DEGREES)),
        shift=(shift[0], shift[1], shift[2]),
    )
    ground = shifted(BACKGROUNDS[background(index)], shift[3:])
    return paint(draw, ground=ground, placing=placing, size_px=size_px)


def background(index: int) -> str:
    """Return the name of the background of the `index`-th picture."""
    return tuple(BACKGROUNDS)[index % len(BACKGROUNDS)]


def draw_subject(
    subject: str, directory: Path, *, count: int = 6, size_px: int = 64, seed: int = 0, captions: bool = False
) -> list[Path]:
    """Write `count` PNG files `<subject>-00.png` … and return their paths.

    With `captions`, each gets a .txt beside it: `a sks heart on a gray background`. Raises InvalidInput for a subject
    that is not in SUBJECTS, and for numbers out of range.
    """
    _check(subject, count, size_px)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for index in range(count):
        path = directory / f"{subject}-{index:02d}.png"
        draw_picture(subject, index, size_px=size_px, seed=seed).save(path, format="PNG")
        if captions:
            text = f"a sks {SUBJECTS[subject][1]} on a {background(index)} background\n"
            path.with_suffix(".txt").write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _check(subject: str, count: int, size_px: int) -> None:
    faults = []
    if subject not in SUBJECTS:
        faults.append(Fault(where="subject", message=f"there is no {subject}", hint=f"one of {', '.join(SUBJECTS)}"))
    if not 1 <= count <= 1000:
        faults.append(Fault(where="count", message=f"{count} is not between 1 and 1000"))
    if not 16 <= size_px <= 2048:
        faults.append(Fault(where="size_px", message=f"{size_px} is not between 16 and 2048"))
    if faults:
        raise InvalidInput(faults)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m giornata.diffusion.tiny.drawings", description=__doc__)
    parser.add_argument("subject", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--size", type=int, default=64, help="pixels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--captions", action="store_true", help="write a .txt beside each picture")
    options = parser.parse_args(argv)
    try:
        draw_subject(
            options.subject,
            options.directory,
            count=options.count,
            size_px=options.size,
            seed=options.seed,
            captions=options.captions,
        )
    except InvalidInput as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
