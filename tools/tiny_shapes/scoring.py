"""Says what a picture shows: form, color and background of one solid figure on a plain ground. Nothing is learned.

Shapes: H, W pixels; S = 32, the side of a figure brought to its bounding box; P pixels of a part.

1. Ground: the median of the picture's border, per channel. Its name is that of the nearest background. Where fewer
   than PLAIN of the border's pixels are ground (see 2), there is neither a background nor a figure.
2. Mask: a pixel's distance d is that of its color from the ground (Euclidean, of 0 … 255 per channel). With q the
   lower quartile of all d > FLOOR, a pixel belongs to the figure where d > max(FLOOR, q / 2): half way up an edge,
   and still below the fainter half of a figure of two colors.
3. Outline: the mask cut to its bounding box (rows and columns with fewer than two of its pixels do not count) and
   brought to S x S. A form's IoU is that of this and its template, which is a drawn picture that went through the
   same steps; the figure's form is that of the highest IoU, provided it is at least LEAST_IOU.
4. Color: the median over the figure where the template has it too. Its name is that of the nearest palette color.
5. A subject of several colors: in each part of its template (a color with at least LEAST_PART of its pixels) the
   median has to lie within OWN_COLOR of the part's color. Its template is also tried tilted.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image

from giornata.diffusion.shapes.pictures import FORMS, PALETTE, SIZE_PX, Shape, filled
from giornata.diffusion.tiny.drawings import BACKGROUNDS, RGB, SUBJECTS, Pen, Placing, paint

SIDE = 32
FLOOR = 24.0
LEAST_IOU = 0.75
LEAST_PART = 0.1
OWN_COLOR = 48.0
TILTS_DEGREES = (-6.0, 0.0, 6.0)
PLAIN = 0.75
LEAST_PIXELS = 24  # fewer are no figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A figure brought to its bounding box."""

    mask_SS: np.ndarray
    colors_SS3: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A template: where the figure is, and which of its parts has which color of its own (none for a form)."""

    mask_SS: np.ndarray
    parts: tuple[tuple[np.ndarray, RGB], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeReading:
    """What a picture shows. `iou` has the IoU with every figure that was looked for; `own_colors` names those
    subjects whose colors are in the right places. All of it is empty when there is no figure."""

    background: str | None
    form: str | None = None
    color: str | None = None
    iou: Mapping[str, float]
    own_colors: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCounts:
    """Shares of `count` pictures that show what was asked for, and the mean IoU with the forms asked for."""

    count: int
    form: float
    color: float
    background: float
    both: float  # form and color
    all: float
    mean_iou: float


class Scorer:
    """Looks for the six forms, and for subjects of giornata.diffusion.tiny.drawings if any are named.

    Raises KeyError for a subject that does not exist.
    """

    def __init__(self, subjects: Sequence[str] = ()) -> None:
        self._figures = {form: _form_views(form) for form in FORMS}
        self._figures |= {subject: _subject_views(subject) for subject in subjects}

    def read(self, picture: Image.Image) -> ShapeReading:
        """What an RGB picture shows, of any size from 16 px."""
        outline, ground = outline_of(picture)
        background = None if ground is None else nearest(ground, BACKGROUNDS)
        if outline is None:
            return ShapeReading(background=background, iou=dict.fromkeys(self._figures, 0.0))
        best = {name: max(views, key=lambda view: _iou(outline, view)) for name, views in self._figures.items()}
        iou = {name: _iou(outline, view) for name, view in best.items()}
        first = max(iou, key=lambda name: iou[name])
        seen_PC = outline.colors_SS3[outline.mask_SS & best[first].mask_SS]
        return ShapeReading(
            background=background,
            form=first if iou[first] >= LEAST_IOU else None,
            color=nearest(np.median(seen_PC, axis=0), PALETTE) if len(seen_PC) else None,
            iou=iou,
            own_colors=frozenset(name for name, view in best.items() if view.parts and _fits(outline, view)),
        )

    def count_scores(self, pictures: Iterable[Image.Image], asked: Iterable[Shape]) -> ScoreCounts:
        """Score pictures against what was asked for, in the same order. A subject's name is a form; its color is
        its own. What a shape leaves open counts as right. Raises ValueError for no pictures, and for another number
        of pictures than of shapes."""
        return count_scores([self.read(picture) for picture in pictures], list(asked))


def count_scores(readings: Sequence[ShapeReading], asked: Sequence[Shape]) -> ScoreCounts:
    """As `Scorer.count_scores`, of pictures that were read already."""
    rows = np.array([_row(reading, shape) for reading, shape in zip(readings, asked, strict=True)], dtype=np.float64)
    if not len(rows):
        raise ValueError("there are no pictures to score")
    form, color, background = (rows[:, column] for column in range(3))
    return ScoreCounts(
        count=len(rows),
        form=float(form.mean()),
        color=float(color.mean()),
        background=float(background.mean()),
        both=float((form * color).mean()),
        all=float((form * color * background).mean()),
        mean_iou=float(rows[:, 3].mean()),
    )


def _row(reading: ShapeReading, asked: Shape) -> tuple[float, float, float, float]:
    own = asked.form in SUBJECTS and asked.form in reading.own_colors
    color = own if asked.form in SUBJECTS else asked.color in {None, reading.color}
    iou = max(reading.iou.values()) if asked.form is None else reading.iou[asked.form]
    return (
        float(asked.form in {None, reading.form}),
        float(color),
        float(asked.background in {None, reading.background}),
        iou,
    )


def nearest(color: Sequence[float] | np.ndarray, named: Mapping[str, RGB]) -> str:
    """The name of the nearest of the named colors."""
    return min(named, key=lambda name: math.dist(tuple(color), named[name]))


def figure_of(picture: Image.Image) -> np.ndarray:
    """The mask_HW of the figure where it stands in the picture."""
    return _mask_and_ground(picture)[0]


def _mask_and_ground(picture: Image.Image) -> tuple[np.ndarray, tuple[float, float, float]]:
    pixels_HW3 = np.asarray(picture.convert("RGB"), dtype=np.float32)
    red, green, blue = (float(channel) for channel in np.median(_border(pixels_HW3), axis=0))
    distance_HW = np.sqrt(((pixels_HW3 - (red, green, blue)) ** 2).sum(axis=2))
    above = distance_HW[distance_HW > FLOOR]
    mask_HW = distance_HW > (max(FLOOR, float(np.quantile(above, 0.25)) / 2) if len(above) else FLOOR)
    return mask_HW, (red, green, blue)


def outline_of(picture: Image.Image) -> tuple[Outline | None, RGB | None]:
    """The figure at its bounding box and the color of the ground; None for what is not there."""
    mask_HW, (red, green, blue) = _mask_and_ground(picture)
    if _border(mask_HW).mean() > 1 - PLAIN:
        return None, None
    ground = (round(red), round(green), round(blue))
    rows, columns = (np.flatnonzero(mask_HW.sum(axis=axis) >= 2) for axis in (1, 0))
    if int(mask_HW.sum()) < LEAST_PIXELS or not len(rows) or not len(columns):
        return None, ground
    box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    coverage = Image.fromarray(mask_HW.astype(np.uint8) * 255).resize((SIDE, SIDE), Image.Resampling.BOX, box=box)
    colors = picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.NEAREST, box=box)
    mask_SS = np.asarray(coverage) >= 128
    return Outline(mask_SS=mask_SS, colors_SS3=np.asarray(colors, dtype=np.float32)), ground


def _border(of_HW: np.ndarray) -> np.ndarray:
    return np.concatenate((of_HW[0], of_HW[-1], of_HW[:, 0], of_HW[:, -1]))


def _iou(outline: Outline, view: View) -> float:
    union = int((outline.mask_SS | view.mask_SS).sum())
    return int((outline.mask_SS & view.mask_SS).sum()) / union if union else 0.0


def _fits(outline: Outline, view: View) -> bool:
    for part_SS, color in view.parts:
        seen_PC = outline.colors_SS3[part_SS & outline.mask_SS]
        if not len(seen_PC) or math.dist(tuple(np.median(seen_PC, axis=0)), color) > OWN_COLOR:
            return False
    return True


@cache
def _form_views(form: str) -> tuple[View, ...]:
    return (View(mask_SS=_drawn(filled(FORMS[form], (0, 0, 0)), tilt_degrees=0.0).mask_SS),)


@cache
def _subject_views(subject: str) -> tuple[View, ...]:
    draw, _ = SUBJECTS[subject]
    return tuple(_view(_drawn(draw, tilt_degrees=tilt)) for tilt in TILTS_DEGREES)


def _view(outline: Outline) -> View:
    colors, counts = np.unique(outline.colors_SS3[outline.mask_SS], axis=0, return_counts=True)
    parts = []
    for color, count in zip(colors, counts, strict=True):
        if count >= LEAST_PART * int(outline.mask_SS.sum()):
            part_SS = (outline.colors_SS3 == color).all(axis=2) & outline.mask_SS
            parts.append((part_SS, (int(color[0]), int(color[1]), int(color[2]))))
    return View(mask_SS=outline.mask_SS, parts=tuple(parts))


def _drawn(draw: Callable[[Pen], None], *, tilt_degrees: float) -> Outline:
    """A template. Its ground is far from every color that a subject has."""
    placing = Placing(radius=21 / SIZE_PX, tilt_radians=math.radians(tilt_degrees))
    outline, _ = outline_of(paint(draw, ground=(255, 255, 255), placing=placing, size_px=SIZE_PX))
    if outline is None:
        raise ValueError("nothing was drawn")
    return outline
