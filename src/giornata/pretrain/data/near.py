"""Which of many pictures look alike by their perceptual hashes, and which of them stay.

Pictures are asked in an order: the most pixels first, among equals the least key. A picture is left out when its hash
is within the distance of one that is kept. Every picture that goes is like one that stays, and no picture goes for
being like one that went.

Not every hash is compared with every other. The 64 bits are cut into distance + k bands. Two hashes that differ in at
most `distance` bits agree in k bands: only those that share k bands are compared (Manku, Jain and Das Sarma,
"Detecting near-duplicates for web crawling", WWW 2007). Where more than CROWD hashes share these bits, they are
divided again by bits in which they still differ. Bits that differ often are dealt out evenly to the bands.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations
from math import comb

import numpy as np

from giornata.pretrain.data.partitions import ROW, Partitions

BITS = 64
CROWD = 1000
"""So many hashes of one value are rather compared all with all than sorted once more for each choice of bands."""
_AS_MUCH_AS_SORTING = 64
"""Comparing a hash with so many others takes about as long as to sort it, roughly."""
_MOST_SHARED = 4
_AT_ONCE = 1 << 20

Found = tuple[np.ndarray, np.ndarray]
"""Two arrays of equal length: of pairs of rows, or of numbers."""


def near_duplicates(by_hash: Partitions, distance: int) -> Found:
    """The numbers of the rows that go, and for each the number of one that stays. The rows are partitioned by their
    hashes."""
    firsts = by_hash.another()
    copies: list[Found] = []
    for rows in by_hash:
        ordered = rows[np.lexsort((rows["key"], -rows["pixels"], rows["hash"]))]
        is_first = _starts(ordered["hash"])
        first = ordered[is_first]
        firsts.add(first, first["hash"])
        of_copies: np.ndarray = np.repeat(first["number"], np.diff(np.flatnonzero(is_first), append=len(ordered)))
        copies.append((ordered["number"][~is_first], of_copies[~is_first]))
    by_hash.drop()
    goes, kept = chosen(*near_pairs(firsts, distance)) if distance else (_none("<i8"), _none("<i8"))
    if not copies:
        return goes, kept
    copy, first_of = (np.concatenate(each) for each in zip(*copies, strict=True))
    # A copy is like what its first is like, or like its first
    order = np.argsort(goes)
    place = np.searchsorted(goes, first_of, sorter=order).clip(max=max(0, len(goes) - 1))
    if len(goes):
        first_of = np.where(goes[order][place] == first_of, kept[order][place], first_of)
    return np.concatenate([goes, copy]), np.concatenate([kept, first_of])


def near_pairs(rows: Partitions, distance: int, *, crowd: int = CROWD) -> Found:
    """The rows of all pairs within the distance, each pair once. All hashes differ."""
    alike = _Alike()
    alike.add(each["hash"] for each in rows)
    found = list(_search(rows, alike, distance=distance, crowd=crowd))
    if not found:
        return _none(ROW), _none(ROW)
    one, other = zip(*found, strict=True)
    return np.concatenate(one), np.concatenate(other)


def chosen(one: np.ndarray, other: np.ndarray) -> Found:
    """Of the rows of all near pairs, the numbers of those that go, and for each that of the first that it is like."""
    both = np.concatenate([one, other])
    numbers, places = np.unique(both["number"], return_index=True)
    ranked = np.lexsort((both["key"][places], -both["pixels"][places]))
    rank: np.ndarray = np.empty(len(ranked), np.int64)
    rank[ranked] = np.arange(len(ranked))
    ends = [rank[np.searchsorted(numbers, each["number"])] for each in (one, other)]
    before, after = np.minimum(*ends), np.maximum(*ends)
    goes: np.ndarray = np.zeros(len(ranked), bool)
    open_before, open_after = before, after
    # Whoever is asked before all of its open neighbors stays, and they go; a pair is open until one of its ends goes.
    while len(open_before):
        waits: np.ndarray = np.zeros(len(ranked), bool)
        waits[open_after] = True
        goes[open_after[~waits[open_before]]] = True
        still = ~goes[open_before] & ~goes[open_after]
        open_before, open_after = open_before[still], open_after[still]
    kept = np.full(len(ranked), len(ranked))
    stays = ~goes[before]
    np.minimum.at(kept, after[stays], before[stays])
    by_rank = numbers[ranked]
    return by_rank[goes], by_rank[kept[goes]]


class _Alike:
    """Hashes that share a value of the bits agreed on: `values` of these, `rows` of them together. `odd` has for each
    bit how many have it otherwise than most with their value."""

    def __init__(self) -> None:
        self.values, self.rows = 0, 0
        self.odd: np.ndarray = np.zeros(BITS, np.int64)

    def add(self, parts: Iterable[np.ndarray]) -> None:
        """All hashes of one value."""
        ones: np.ndarray = np.zeros(BITS, np.int64)
        rows = 0
        for hashes in parts:
            rows += len(hashes)
            for first in range(0, len(hashes), _AT_ONCE):
                octets: np.ndarray = hashes[first : first + _AT_ONCE].astype("<u8").view(np.uint8).reshape(-1, 8)
                ones += np.unpackbits(octets, axis=1, bitorder="little").sum(axis=0, dtype=np.int64)
        self.values, self.rows = self.values + 1, self.rows + rows
        self.odd += np.minimum(ones, rows - ones)


def _search(
    source: Partitions, alike: _Alike, *, distance: int, crowd: int, agreed: int = 0, seen: tuple[int, ...] = ()
) -> Iterator[Found]:
    """Among rows that agree in the bits of `agreed`. Pairs that agree in all bits of one of `seen` are found
    already."""
    if not alike.rows:
        return
    choices = masks(alike.odd.tolist(), distance, rows=alike.rows, values=alike.values)
    for mask in choices or [0]:
        same = agreed | mask
        banded = source.another()
        for rows in source:
            banded.add(rows, rows["hash"] & np.uint64(same))
        crowded, among = source.another(), _Alike()
        for rows in banded:
            ordered = rows[np.argsort(rows["hash"] & np.uint64(same), kind="stable")]
            band = ordered["hash"] & np.uint64(same)
            starts = np.flatnonzero(_starts(band))
            sizes = np.diff(starts, append=len(band))
            many = sizes > (crowd if choices else len(band))
            for start, size in zip(starts[many], sizes[many], strict=True):
                together = ordered[start : start + size]
                among.add([together["hash"]])
                crowded.add(together, together["hash"])
            few: np.ndarray = ~np.repeat(many, sizes)
            yield from compared(ordered[few], band[few], distance, seen)
        banded.drop()
        yield from _search(crowded, among, distance=distance, crowd=crowd, agreed=same, seen=seen)
        crowded.drop()
        seen = (*seen, same)


def compared(rows: np.ndarray, band: np.ndarray, distance: int, seen: tuple[int, ...]) -> Iterator[Found]:
    """Near pairs of rows sorted by their band: each with the next of its band, the next but one, and so on."""
    hashes, left, apart = rows["hash"], np.arange(len(rows)), 0
    while len(left):
        apart += 1
        left = left[left + apart < len(rows)]
        left = left[band[left] == band[left + apart]]
        differ = hashes[left] ^ hashes[left + apart]
        near = np.bitwise_count(differ) <= distance
        for mask in seen:
            near &= (differ & np.uint64(mask)) != 0
        if near.any():
            yield rows[left[near]], rows[left[near] + apart]


def masks(odd: list[int], distance: int, *, rows: int, values: int) -> list[int]:
    """Choices of so many bits that hashes of one value which differ in at most `distance` agree in all bits of one
    choice: as few choices as may be, and yet so many bits in each that few agree by chance. None where so few bits
    differ at all that any two are within the distance."""
    bits = sorted((bit for bit in range(BITS) if odd[bit]), key=lambda bit: -odd[bit])
    if len(bits) <= distance:
        return []
    told = 2 * sum(odd) / rows  # at most what they tell, in bits (Shannon's)

    def work(shared: int) -> float:
        by_chance = rows / values / 2 ** (told * shared / (distance + shared))
        return comb(distance + shared, shared) * (1 + by_chance / _AS_MUCH_AS_SORTING)

    shared = min(range(1, min(_MOST_SHARED, len(bits) - distance) + 1), key=work)
    bands = [sum(1 << bit for bit in bits[first :: distance + shared]) for first in range(distance + shared)]
    return [sum(chosen) for chosen in combinations(bands, shared)]


def _starts(values: np.ndarray) -> np.ndarray:
    """Of sorted values: where another one begins."""
    return np.append(np.ones(min(1, len(values)), bool), values[1:] != values[:-1])


def _none(kind: np.dtype | str) -> np.ndarray:
    return np.empty(0, kind)
