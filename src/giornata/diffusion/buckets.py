"""Aspect-ratio buckets: sizes near a picture's own proportions, all of about the area of the square.

Sizes are (height, width) in pixels, as in SDXL's micro-conditioning.
"""

from collections.abc import Sequence
from fractions import Fraction

Size = tuple[int, int]


def bucket_sizes(*, resolution: int, steps: int, least: int, most: int) -> tuple[Size, ...]:
    """Every size whose sides are multiples of `steps` between `least` and `most` and whose area is at most
    resolution², as large as it can be; sorted. kohya's list (`make_bucket_resolutions`): for each shorter or longer
    side the greatest other one, and the square.
    """
    area = resolution * resolution
    square = resolution // steps * steps
    found = {(square, square)}
    for side in range(least, most + 1, steps):
        other = min(most, area // side // steps * steps)
        if other >= least:
            found |= {(side, other), (other, side)}
    return tuple(sorted(found))


def nearest(original: Size, sizes: Sequence[Size]) -> Size:
    """The size whose proportions are those of `original` best: the least factor between the two ratios of the sides.

    Of sizes with the same ratio the largest. Turning a picture turns its bucket. Compared as fractions, so that no
    rounding decides.
    """
    height, width = original

    def misfit(size: Size) -> tuple[Fraction, int, Size]:
        one, other = height * size[1], width * size[0]
        return Fraction(max(one, other), min(one, other)), -size[0] * size[1], size

    return min(sizes, key=misfit)
