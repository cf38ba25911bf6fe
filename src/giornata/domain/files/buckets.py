"""Aspect-ratio buckets: sizes near a picture's own proportions, all of about the area of the square.

Sizes are (height, width) in pixels, as in SDXL's micro-conditioning.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

Size = tuple[int, int]


@lru_cache(maxsize=64)
def bucket_sizes(*, resolution: int, steps: int, least: int, most: int) -> tuple[Size, ...]:
    """Return every size whose sides are multiples of `steps` between `least` and `most` and whose area is at most
    resolution², as large as it can be; sorted. This is kohya's list (`make_bucket_resolutions`): for each shorter or
    longer side the greatest other one, and the square."""
    area = resolution * resolution
    square = resolution // steps * steps
    found = {(square, square)}
    for side in range(least, most + 1, steps):
        other = min(most, area // side // steps * steps)
        if other >= least:
            found |= {(side, other), (other, side)}
    return tuple(sorted(found))


def nearest(original: Size, sizes: Sequence[Size]) -> Size:
    """Return the size with the proportions closest to `original`'s: the least factor between the two ratios of the
    sides.

    Out of sizes with the same ratio it is the largest. Turning a picture turns its bucket. Ratios are compared as
    fractions, so that no rounding decides.
    """
    height, width = original

    def misfit(size: Size) -> tuple[Fraction, int, Size]:
        one, other = height * size[1], width * size[0]
        return Fraction(max(one, other), min(one, other)), -size[0] * size[1], size

    return min(sizes, key=misfit)


def shrunk(original: Size, *, resolution: int, steps: int) -> Size:
    """Return the bucket of a picture that must not be enlarged: kohya's `bucket_no_upscale`
    (`BucketManager.select_bucket`).

    A picture of at most resolution² pixels has its own size, rounded down to multiples of `steps`. A larger one has
    the size that it is scaled down to, rounded likewise. A side has at least `steps` pixels.
    """
    height, width = original
    if width * height > resolution * resolution:
        width, height = _scaled_down(width, height, resolution=resolution, steps=steps)
    return max(steps, height - height % steps), max(steps, width - width % steps)


def _scaled_down(width: int, height: int, *, resolution: int, steps: int) -> tuple[int, int]:
    """Return (width, height) of about resolution² pixels. One side is a multiple of `steps`: that of the two which
    keeps the proportions better. Divisions and roots of IEEE 754 doubles are the same on every machine."""
    ratio = width / height
    wide = math.sqrt(resolution * resolution * ratio)
    tall = resolution * resolution / wide

    def rounded(side: float) -> int:
        return max(steps, int(side + 0.5) // steps * steps)

    by_width, by_height = rounded(wide), rounded(tall)
    misfit_by_width = abs(by_width / rounded(by_width / ratio) - ratio)
    misfit_by_height = abs(rounded(by_height * ratio) / by_height - ratio)
    if misfit_by_width < misfit_by_height:
        return by_width, int(by_width / ratio + 0.5)
    return int(by_height * ratio + 0.5), by_height


def target_size(original: Size, *, resolution: int, buckets: Sequence[Size], no_upscale_steps: int | None) -> Size:
    """Return the size that a picture is trained at: the square, the nearest of `buckets`, or with `no_upscale_steps`
    a multiple of that which is no larger than the picture."""
    if no_upscale_steps is not None:
        return shrunk(original, resolution=resolution, steps=no_upscale_steps)
    return nearest(original, buckets) if buckets else (resolution, resolution)
