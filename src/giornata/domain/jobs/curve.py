"""Which steps a drawn curve has: few of many, at round numbers, the last one always."""

from collections.abc import Sequence
from dataclasses import dataclass

HELD_OUT_SHARE = 4
"""One point in so many is kept for values that only some steps have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSteps:
    """Steps at which a curve is looked at: every `every`-th, and those of values that are rare."""

    every: int
    steps: Sequence[int]


def curve_steps(first: int, last: int, points: int, *, rare_every: int | None = None) -> CurveSteps:
    """Return at most `points` steps from `first` to `last`, ascending, that one among them.

    `every` is 1, 2 or 5 times a power of ten, so that a curve that grows keeps the steps that it has. Multiples of
    `rare_every` have values that other steps have not, such as the loss on held-out pictures.
    """
    if last - first < points:
        return CurveSteps(every=1, steps=range(first, last + 1))
    rare = points // HELD_OUT_SHARE if rare_every else 0
    # The grid may begin before its first whole distance, and the last step may be beside it.
    every = _round_distance(last - first, points - rare - 2)
    steps = {first, last, *_multiples(every, first, last)}
    if rare_every:
        distance = -(-(last - first) // (max(1, rare - 1) * rare_every)) * rare_every
        steps.update(_multiples(distance, first, last))
    return CurveSteps(every=every, steps=sorted(steps))


def _round_distance(span: int, parts: int) -> int:
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power * max(1, parts - 1) >= span:
                return digit * power
        power *= 10


def _multiples(of: int, first: int, last: int) -> range:
    return range(-(-first // of) * of, last + 1, of)
