"""Near duplicates: pictures whose perceptual hashes differ in few bits, and the one of them that stays.

Pictures are visited in an order: the most pixels first, among equals the least key. A picture goes when its hash is
within the distance of a kept one. Every picture that goes is like one that stays.

The 64 bits are cut into distance + k bands. Two hashes that differ in at most `distance` bits agree in k bands, so
only hashes that share k bands are compared (Manku, Jain and Das Sarma, "Detecting near-duplicates for web crawling",
WWW 2007). More than CROWD hashes with equal bands are divided again by bits in which they still differ.
"""

from collections.abc import Iterator
from itertools import combinations
from math import comb
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

ROW = np.dtype([("key", "S32"), ("number", "<i8"), ("pixels", "<i8"), ("hash", "<u8")])
"""A picture: the sha256 of its bytes, its number in the source, its size in pixels and its perceptual hash."""
WORKING_BYTES = 4 * ROW.itemsize
"""Memory for a row of a partition: the row, its place in an order, and copies."""
BITS = 64
CROWD = 1000
"""Up to this many hashes are compared all with all, which costs less than to sort them once more for each choice."""
_AS_MUCH_AS_SORTING = 64
"""To compare a hash with this many others takes about as long as to sort it."""
_MAX_SHARED = 4
_MAX_PARTITIONS = 4096
_ODD = np.uint64(0x9E3779B97F4A7C15)

Pairs = tuple[np.ndarray, np.ndarray]
"""Two arrays of equal length: of pairs of rows, or of numbers."""


class Partitions:
    """Rows of ROW, divided by a value of each so that one partition fits into memory.

    All rows of one value are in one partition. Rows that fit into memory together are not written to the disk.
    """

    def __init__(self, folder: Path, rows: int, memory_bytes: int) -> None:
        """Partitions for this many `rows`. Files lie in a new folder in `folder`."""
        self._count = min(_MAX_PARTITIONS, -(-rows * WORKING_BYTES // memory_bytes) or 1)
        self._folder = Path(mkdtemp(dir=folder)) if self._count > 1 else None
        self._in_memory: list[np.ndarray] = []
        self._limits = folder, memory_bytes
        self.rows = 0

    def another(self) -> "Partitions":
        """Empty partitions with the same limits, for as many rows."""
        folder, memory_bytes = self._limits
        return Partitions(folder, self.rows, memory_bytes)

    def add(self, rows: np.ndarray, values: np.ndarray) -> None:
        self.rows += len(rows)
        if self._folder is None:
            self._in_memory.append(rows)
            return
        places = ((values.astype(np.uint64) * _ODD) >> np.uint64(32)) % np.uint64(self._count)
        order = np.argsort(places, kind="stable")
        numbers, starts = np.unique(places[order], return_index=True)
        for number, part in zip(numbers, np.split(rows[order], starts[1:]), strict=True):
            with (self._folder / str(number)).open("ab") as file:
                part.tofile(file)

    def __iter__(self) -> Iterator[np.ndarray]:
        if self._in_memory:
            yield np.concatenate(self._in_memory)
        for path in self._folder.iterdir() if self._folder else ():
            yield np.fromfile(path, ROW)

    def drop(self) -> None:
        self._in_memory = []
        for path in self._folder.iterdir() if self._folder else ():
            path.unlink()


def near_duplicates(by_hash: Partitions, distance: int) -> Pairs:
    """The numbers of the rows that go, and for each the number of one that stays. Partitions are by hash."""
    firsts = by_hash.another()
    copies: list[Pairs] = []
    for rows in by_hash:
        ordered = rows[np.lexsort((rows["key"], -rows["pixels"], rows["hash"]))]
        first, (copy, first_of) = split_firsts(ordered, ordered["hash"])
        firsts.add(first, first["hash"])
        copies.append((copy, first_of))
    by_hash.drop()
    goes, kept = chosen(*near_pairs(firsts, distance)) if distance else (_none("<i8"), _none("<i8"))
    if not copies:
        return goes, kept
    copy, first_of = (np.concatenate(each) for each in zip(*copies, strict=True))
    # A copy is like its first, or like what its first is like
    order = np.argsort(goes)
    place = np.searchsorted(goes, first_of, sorter=order).clip(max=max(0, len(goes) - 1))
    if len(goes):
        first_of = np.where(goes[order][place] == first_of, kept[order][place], first_of)
    return np.concatenate([goes, copy]), np.concatenate([kept, first_of])


def near_pairs(rows: Partitions, distance: int, *, crowd: int = CROWD) -> Pairs:
    """The rows of all pairs within the distance, each pair once. All hashes differ."""
    found = list(_search(rows, (1 << BITS) - 1, distance=distance, crowd=crowd))
    if not found:
        return _none(ROW), _none(ROW)
    one, other = zip(*found, strict=True)
    return np.concatenate(one), np.concatenate(other)


def chosen(one: np.ndarray, other: np.ndarray) -> Pairs:
    """Return the numbers of the rows of near pairs that go, and for each the number of the first like it."""
    both = np.concatenate([one, other])
    numbers, places = np.unique(both["number"], return_index=True)
    ranked = np.lexsort((both["key"][places], -both["pixels"][places]))
    rank: np.ndarray = np.empty(len(ranked), np.int64)
    rank[ranked] = np.arange(len(ranked))
    ends = [rank[np.searchsorted(numbers, each["number"])] for each in (one, other)]
    before, after = np.minimum(*ends), np.maximum(*ends)
    goes: np.ndarray = np.zeros(len(ranked), bool)
    open_before, open_after = before, after
    # A row before all of its open neighbors stays, and they go; a pair is open until one of its rows goes.
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


def _search(
    source: Partitions,
    varying: int,
    *,
    distance: int,
    crowd: int,
    groups: int = 1,
    agreed: int = 0,
    seen: tuple[int, ...] = (),
) -> Iterator[Pairs]:
    """Near pairs within each of the `groups` of rows that agree in the bits of `agreed`.

    Rows of a group differ in bits of `varying` only. Pairs that agree in all bits of one of `seen` were found before.
    """
    if not source.rows:
        return
    choices = masks(varying, distance, rows=source.rows // groups)
    for mask in choices or [0]:
        same = agreed | mask
        banded = source.another()
        for rows in source:
            banded.add(rows, rows["hash"] & np.uint64(same))
        crowded, crowds, still_varying = source.another(), 0, 0
        for rows in banded:
            ordered = rows[np.argsort(rows["hash"] & np.uint64(same), kind="stable")]
            band = ordered["hash"] & np.uint64(same)
            starts = np.flatnonzero(_starts(band))
            sizes = np.diff(starts, append=len(band))
            many = sizes > (crowd if choices else len(band))
            for start, size in zip(starts[many], sizes[many], strict=True):
                together = ordered[start : start + size]
                still_varying |= _varying(together["hash"])
                crowds += 1
                crowded.add(together, together["hash"])
            few: np.ndarray = ~np.repeat(many, sizes)
            yield from compared(ordered[few], band[few], distance, seen)
        banded.drop()
        limits = {"distance": distance, "crowd": crowd, "groups": crowds}
        yield from _search(crowded, still_varying, **limits, agreed=same, seen=seen)
        crowded.drop()
        seen = (*seen, same)


def compared(rows: np.ndarray, band: np.ndarray, distance: int, seen: tuple[int, ...]) -> Iterator[Pairs]:
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


def masks(varying: int, distance: int, *, rows: int) -> list[int]:
    """Masks of varying bits such that two hashes within `distance` agree in all bits of one mask.

    There are as few masks as possible, each with enough bits that few of `rows` hashes agree in them by chance. The
    list is empty where so few bits vary that any two hashes are within the distance.
    """
    bits = [bit for bit in range(BITS) if varying >> bit & 1]
    if len(bits) <= distance:
        return []

    def work(shared: int) -> float:
        by_chance = rows / 2 ** (len(bits) * shared / (distance + shared))
        return comb(distance + shared, shared) * (1 + by_chance / _AS_MUCH_AS_SORTING)

    shared = min(range(1, min(_MAX_SHARED, len(bits) - distance) + 1), key=work)
    bands = [sum(1 << bit for bit in bits[first :: distance + shared]) for first in range(distance + shared)]
    return [sum(chosen) for chosen in combinations(bands, shared)]


def _varying(hashes: np.ndarray) -> int:
    return int(np.bitwise_or.reduce(hashes ^ hashes[:1])) if len(hashes) else 0


def split_firsts(ordered: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, Pairs]:
    """The first row of each value; the numbers of the other rows, each with the number of its value's first row."""
    is_first = _starts(values)
    first = ordered[is_first]
    first_of: np.ndarray = np.repeat(first["number"], np.diff(np.flatnonzero(is_first), append=len(ordered)))
    return first, (ordered["number"][~is_first], first_of[~is_first])


def _starts(values: np.ndarray) -> np.ndarray:
    """Return, for each sorted value, True where it differs from the one before."""
    return np.append(np.ones(min(1, len(values)), bool), values[1:] != values[:-1])


def _none(kind: np.dtype | str) -> np.ndarray:
    return np.empty(0, kind)
