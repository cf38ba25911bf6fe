"""Two curves of validation loss, held against each other at equal samples and at equal time. No libraries."""

from collections.abc import Mapping, Sequence
from typing import Any

Point = Mapping[str, Any]
"""{"samples", "cpu_s", "loss", "levels": {level: loss}}"""


def at(curve: Sequence[Point], x: str, value: float) -> dict[str, Any]:
    """The curve where `x` ("samples" or "cpu_s") is `value`, by a line between the points around it. Raises
    ValueError outside of the curve."""
    if not curve[0][x] <= value <= curve[-1][x]:
        raise ValueError(f"the curve has {x} from {curve[0][x]:g} to {curve[-1][x]:g}, and not {value:g}")
    after = next(place for place, point in enumerate(curve) if point[x] >= value)
    right, left = curve[after], curve[max(0, after - 1)]
    width = right[x] - left[x]
    share = (value - left[x]) / width if width else 1.0

    def between(one: float, other: float) -> float:
        return one + share * (other - one)

    levels = {name: between(left["levels"][name], right["levels"][name]) for name in right["levels"]}
    return {
        "samples": between(left["samples"], right["samples"]),
        "cpu_s": between(left["cpu_s"], right["cpu_s"]),
        "loss": between(left["loss"], right["loss"]),
        "levels": levels,
    }


def compared(plain: Sequence[Point], other: Sequence[Point]) -> dict[str, Any]:
    """`other`'s loss as a share of `plain`'s, 1 being equal: where both end in samples, and where the one that took
    less time ends; and its CPU seconds for a sample as a share of `plain`'s."""
    samples = min(plain[-1]["samples"], other[-1]["samples"])
    cpu_s = min(plain[-1]["cpu_s"], other[-1]["cpu_s"])
    found = {}
    for name, x, value in (("equal_samples", "samples", samples), ("equal_time", "cpu_s", cpu_s)):
        here, there = at(plain, x, value), at(other, x, value)
        levels = {level: there["levels"][level] / loss for level, loss in here["levels"].items()}
        found[name] = {"loss": there["loss"] / here["loss"], "levels": levels, x: value}
    each = [curve[-1]["cpu_s"] / curve[-1]["samples"] for curve in (plain, other)]
    return {**found, "cpu_s_per_sample": each[1] / each[0]}
