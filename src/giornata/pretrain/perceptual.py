"""Pictures that look alike: a hash of 64 bits by the discrete cosine transform, and which hashes are near.

The hash is that of Zauner, "Implementation and benchmarking of perceptual image hash functions" (2010): grey,
32 × 32, the 8 × 8 lowest frequencies of a DCT-II, one bit each for above their median. Scaled, recompressed and
slightly recoloured copies differ in a few bits; so do different pictures of little content, such as plain drawings.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from PIL import Image

BITS = 64
_SIDE, _LOW = 32, 8
_MEMBERS_AT_ONCE = 2048

# DCT-II without its scale factors: bits are comparisons
_COSINES = np.cos(math.pi / _SIDE * np.outer(np.arange(_LOW), np.arange(_SIDE) + 0.5))


def hash_of(picture: Image.Image) -> int:
    """Of an upright RGB picture."""
    grey_HW = np.asarray(picture.convert("L").resize((_SIDE, _SIDE), Image.Resampling.LANCZOS), dtype=np.float64)
    low = (_COSINES @ grey_HW @ _COSINES.T).ravel()
    bits = low > np.median(low[1:])  # the first is the mean brightness
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def alike(hashes: np.ndarray, distance: int) -> Iterator[tuple[int, int]]:
    """Every pair (i < j) of hashes, uint64, that differ in at most `distance` bits; exact, each pair once.

    Of hashes cut into distance + 1 bands, two that differ in at most `distance` bits agree in a band, so that only
    those which share one are compared.
    """
    bands = _bands(distance + 1)
    for place, band in enumerate(bands):
        for members in _sharing(hashes & band):
            for left, right in _near(hashes, members, distance):
                difference = int(hashes[left] ^ hashes[right])
                if not any(difference & int(earlier) == 0 for earlier in bands[:place]):  # was told there
                    yield (left, right) if left < right else (right, left)


def _bands(count: int) -> list[np.uint64]:
    ends = [BITS * place // count for place in range(count + 1)]
    return [np.uint64((1 << end) - (1 << start)) for start, end in pairwise(ends)]


def _sharing(values: np.ndarray) -> Iterator[np.ndarray]:
    """Places of equal values, two at least."""
    order = np.argsort(values, kind="stable")
    edges: np.ndarray = np.flatnonzero(np.diff(values[order])) + 1
    return (members for members in np.split(order, edges) if len(members) > 1)


def _near(hashes: np.ndarray, members: np.ndarray, distance: int) -> Iterator[tuple[int, int]]:
    """Pairs among the members, in strips, so that a large group needs no square of memory."""
    own = hashes[members]
    for start in range(0, len(members), _MEMBERS_AT_ONCE):
        strip = own[start : start + _MEMBERS_AT_ONCE]
        apart = np.bitwise_count(strip[:, None] ^ own[None, start:])
        for row, column in np.argwhere(apart <= distance):
            if column > row:
                yield int(members[start + row]), int(members[start + column])


def near_duplicates(hashes: np.ndarray, preferred: np.ndarray, distance: int) -> dict[int, int]:
    """Places to be left out, each with the kept place that it is like.

    Places are asked in the order `preferred`; one is left out when it is within `distance` of one that is kept. So
    every picture that goes is like one that stays, and none goes for being like one that went.
    """
    distinct, first_of = np.unique(hashes, return_inverse=True)
    rank: np.ndarray = np.empty(len(hashes), np.int64)
    rank[preferred] = np.arange(len(hashes))
    neighbours: dict[int, list[int]] = defaultdict(list)
    for left, right in alike(distinct, distance):
        neighbours[left].append(right)
        neighbours[right].append(left)
    kept_of: dict[int, int] = {}
    out: dict[int, int] = {}
    for place in map(int, preferred):
        own = int(first_of[place])
        kept = [kept_of[each] for each in (own, *neighbours[own]) if each in kept_of]
        if kept:
            out[place] = min(kept, key=lambda each: int(rank[each]))
        else:
            kept_of[own] = place
    return out
