"""All pairs of hashes that differ in few bits, without comparing every hash with every other.

The 64 bits are cut into distance + k bands. Two hashes that differ in at most `distance` bits differ in at most as
many bands and so agree in k: only those that share k bands are compared (Manku, Jain and Das Sarma, "Detecting
near-duplicates for web crawling", WWW 2007). For each choice of k bands the hashes are sorted by these bits and gone
through range by range. Where more than CROWD hashes share a value they are not compared but divided again, by the
bits in which they still differ: the work does not grow with the square of the most frequent value. Bits that differ
often are dealt out evenly, so that every band divides.
"""

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any, Self

from giornata.pretrain.data.perceptual import BITS
from giornata.pretrain.data.sorted_tables import SortedTables

CROWD = 1000
"""So many hashes of one value are rather compared all with all than sorted once more for each choice of bands."""

ALL = 1 << BITS
_AS_MUCH_AS_SORTING = 64
"""Comparing a hash with so many others takes about as long as to sort it, roughly."""
_MOST_SHARED = 4

_CROWDED = """
CREATE OR REPLACE TEMP TABLE crowded AS SELECT band FROM banded WHERE band >= $low AND band < $high
GROUP BY band HAVING count(*) > $crowd"""

_PAIRS = """
INSERT INTO pairs WITH sharing AS (
    SELECT * FROM banded WHERE band >= $low AND band < $high AND band NOT IN (FROM crowded)
)
SELECT a.rank, b.rank FROM sharing a JOIN sharing b USING (band)
WHERE a.rank < b.rank AND bit_count(xor(a.hash, b.hash)) <= $distance"""

_IN_CROWD = "WHERE band >= $low AND band < $high AND band IN (FROM crowded)"
_CROWD = "INSERT INTO {crowd} SELECT hash, rank FROM banded " + _IN_CROWD

_ONES = ", ".join(f"sum(hash >> {bit} & 1)" for bit in range(BITS))
_ODD = f"SELECT count(*), {_ONES} FROM {{source}} {{where}} {{by}}"
"""For each value its rows and, for each bit, how many have the bit. DuckDB plans a sum of sums twice as long."""


def find_pairs(tables: SortedTables, distance: int, *, crowd: int = CROWD) -> None:
    """Insert into `pairs` (before, after) the ranks of all pairs of `first` (hash, rank; hashes that all differ)
    within the distance, each once, the lesser rank first."""
    if distance:
        alike = _added(Alike.none(), tables.answer(_ODD.format(source="first", where="", by="")))
        _Search(tables=tables, distance=distance, crowd=crowd).find("first", 0, (), alike)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Hashes that share a value of the bits agreed on: `values` of these, `rows` of them together. `odd` has for each
    bit how many have it otherwise than most with their value."""

    values: int
    rows: int
    odd: tuple[int, ...]

    @classmethod
    def none(cls) -> Self:
        """Nothing yet."""
        return cls(values=0, rows=0, odd=(0,) * BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    tables: SortedTables
    distance: int
    crowd: int

    def find(self, source: str, agreed: int, seen: tuple[int, ...], alike: Alike) -> None:
        """Among rows of `source` that agree in the bits of `agreed`. Pairs that agree in all bits of one of `seen`
        are found already."""
        choices, deeper = masks(alike, self.distance), f"crowd_{agreed.bit_count()}"
        for mask in choices or [0]:
            same = agreed | mask
            self.tables.run(f"CREATE OR REPLACE TABLE {deeper} (hash UBIGINT, rank BIGINT)")
            self.tables.sort("banded", f"SELECT hash & {same}::UBIGINT AS band, hash, rank FROM {source}", "band")
            crowds = self._compare(deeper, seen, self.crowd if choices else ALL)
            if crowds.rows:
                self.find(deeper, same, seen, crowds)
            seen = (*seen, same)
        self.tables.drop("banded", "crowded", deeper)

    def _compare(self, deeper: str, seen: tuple[int, ...], crowd: int) -> Alike:
        """Within each value of `banded`, except where more share it: these go to the table `deeper`."""
        new = "".join(f" AND (xor(a.hash, b.hash) & {mask}::UBIGINT) <> 0" for mask in seen)
        found = Alike.none()
        for part in self.tables.ranges("banded", "band"):
            self.tables.run(_CROWDED, {**part, "crowd": crowd})
            self.tables.run(_PAIRS + new, {**part, "distance": self.distance})
            if self.tables.count("crowded"):
                self.tables.run(_CROWD.format(crowd=deeper), part)
                odd = _ODD.format(source="banded", where=_IN_CROWD, by="GROUP BY band")
                found = _added(found, self.tables.answer(odd, part))
        return found


def _added(alike: Alike, found: list[tuple[Any, ...]]) -> Alike:
    """`found` is what `_ODD` answers. A table without rows has one row there, which counts none."""
    found = [each for each in found if each[0]]
    odd = list(alike.odd)
    for rows, *ones in found:
        for bit, having in enumerate(ones):
            odd[bit] += min(int(having), rows - int(having))
    together = alike.rows + sum(rows for rows, *_ in found)
    return Alike(values=alike.values + len(found), rows=together, odd=tuple(odd))


def masks(alike: Alike, distance: int) -> list[int]:
    """Choices of so many bits that hashes of one value which differ in at most `distance` agree in all bits of one
    choice: as few choices as may be, and yet so many bits in each that few agree by chance. None where so few bits
    differ at all that any two are within the distance."""
    bits = sorted((bit for bit in range(BITS) if alike.odd[bit]), key=lambda bit: -alike.odd[bit])
    if len(bits) <= distance:
        return []
    told = 2 * sum(alike.odd) / alike.rows  # at most what they tell, in bits (Shannon's)
    shares = range(1, min(_MOST_SHARED, len(bits) - distance) + 1)
    shared = min(shares, key=lambda share: _work(told, distance, share, alike.rows / alike.values))
    bands = [sum(1 << bit for bit in bits[first :: distance + shared]) for first in range(distance + shared)]
    return [sum(chosen) for chosen in combinations(bands, shared)]


def _work(told: float, distance: int, shared: int, rows: float) -> float:
    by_chance = rows / 2 ** (told * shared / (distance + shared))
    return comb(distance + shared, shared) * (1 + by_chance / _AS_MUCH_AS_SORTING)
