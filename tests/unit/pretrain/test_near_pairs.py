"""Near pairs are all found, each once, whatever the hashes have in common; the reference compares all with all."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from giornata.pretrain.data.near_pairs import Alike, find_pairs, masks
from giornata.pretrain.data.sorted_tables import Range, SortedTables

ALL_BITS = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched(SortedTables):
    """Notes how many hashes of one value are compared all with all."""

    compared: list[int]

    def run(self, statement: str, values: Range | None = None) -> None:
        if "INSERT INTO pairs" in statement:
            assert values is not None
            part = "FROM banded WHERE band >= $low AND band < $high AND band NOT IN (FROM crowded)"
            query = f"SELECT count(*) {part} GROUP BY band"
            ends = {name: values[name] for name in ("low", "high")}
            self.compared.extend(count for (count,) in self.connection.execute(query, ends).fetchall())
        SortedTables.run(self, statement, values)


def pairs_of(hashes: Iterable[int], distance: int, *, crowd: int = 1000, rows_at_once: int = 10**6) -> Watched:
    """Tables with `pairs` of hashes whose ranks are their places."""
    tables = Watched(connection=duckdb.connect(config={"threads": 1}), rows_at_once=rows_at_once, compared=[])
    tables.run("CREATE TABLE first (hash UBIGINT, rank BIGINT)")
    rows = [[each, rank] for rank, each in enumerate(hashes)]
    tables.connection.executemany("INSERT INTO first VALUES (?, ?)", rows)
    tables.run("CREATE TABLE pairs (before BIGINT, after BIGINT)")
    find_pairs(tables, distance, crowd=crowd)
    return tables


def found(
    hashes: Iterable[int], distance: int, *, crowd: int = 1000, rows_at_once: int = 10**6
) -> list[tuple[int, ...]]:
    with pairs_of(hashes, distance, crowd=crowd, rows_at_once=rows_at_once).connection as connection:
        return sorted(connection.execute("FROM pairs").fetchall())


def by_definition(hashes: list[int], distance: int) -> list[tuple[int, ...]]:
    numbered = enumerate(hashes)
    return [(one, two) for (one, a), (two, b) in combinations(numbered, 2) if (a ^ b).bit_count() <= distance]


# Hashes that have most of their bits in common, and these anywhere
FEW_BITS = st.lists(st.integers(0, 63), min_size=1, max_size=12, unique=True)


@st.composite
def crowds(draw: st.DrawFn, most: int = 40) -> list[int]:
    bits, base = draw(FEW_BITS), draw(st.integers(0, ALL_BITS))
    flips = st.sets(st.sampled_from(bits)).map(lambda chosen: base ^ sum(1 << bit for bit in chosen))
    return draw(st.lists(flips, min_size=1, max_size=most, unique=True))


@settings(max_examples=40)
@given(crowds(), st.integers(0, 5), st.integers(6, 10), st.integers(1, 20))
@example(list(range(32)), 5, 1, 3)
def test_all_near_pairs_are_found_once(hashes: list[int], distance: int, crowd: int, rows_at_once: int) -> None:
    assert found(hashes, distance, crowd=crowd, rows_at_once=rows_at_once) == by_definition(hashes, distance)


@settings(max_examples=25)
@given(crowds(most=6), st.integers(0, 3), st.integers(1, 5), st.integers(1, 20))
@example([0, 1, 3, 7, 15, 31, 63, 127, ALL_BITS], 3, 1, 1)
def test_so_they_are_where_few_are_a_crowd(hashes: list[int], distance: int, crowd: int, rows_at_once: int) -> None:
    """With few hashes, for of many an example takes a minute: each of its statements costs more than its rows."""
    assert found(hashes, distance, crowd=crowd, rows_at_once=rows_at_once) == by_definition(hashes, distance)


def test_what_many_share_is_not_compared_all_with_all() -> None:
    # 40 bits are the same for all of them
    hashes = [(each * 0x9E3779B97F4A7C15 & ALL_BITS) >> 40 | 0xABCDEF << 40 for each in range(1500)]
    hashes = [*sorted(set(hashes)), hashes[7] ^ 0b101]
    tables = pairs_of(hashes, 3, crowd=20)
    with tables.connection as connection:
        pairs = sorted(connection.execute("FROM pairs").fetchall())
    assert max(tables.compared) <= 20
    assert pairs == by_definition(hashes, 3)
    assert pairs


def alike(odd: dict[int, int], rows: int) -> Alike:
    return Alike(values=1, rows=rows, odd=tuple(odd.get(bit, 0) for bit in range(64)))


@given(st.dictionaries(st.integers(0, 63), st.integers(1, 500)), st.integers(1, 6), st.sampled_from([10**3, 10**9]))
def test_hashes_that_are_near_agree_in_one_choice(odd: dict[int, int], distance: int, rows: int) -> None:
    chosen = masks(alike(odd, rows), distance)
    assert bool(chosen) == (len(odd) > distance)
    assert all(mask and not mask & ~sum(1 << bit for bit in odd) for mask in chosen)
    for differ in combinations(sorted(odd)[: distance + 4], distance if chosen else 0):
        assert not chosen or any(all(not mask >> bit & 1 for bit in differ) for mask in chosen)


@pytest.mark.parametrize(("rows", "choices"), [(1000, 4), (10**7, 10), (10**11, 20)])
def test_the_more_rows_the_more_bits_must_agree(rows: int, choices: int) -> None:
    chosen = masks(alike(dict.fromkeys(range(64), rows // 2), rows), 3)
    assert len(chosen) == choices
    assert rows / 2 ** min(mask.bit_count() for mask in chosen) < 64


@pytest.mark.parametrize("apart", [1, 4, 5, 6, 7])
def test_every_choice_has_bits_that_differ_often(apart: int) -> None:
    often = {apart * place: 500 - place for place in range(8)}
    chosen = masks(alike(dict.fromkeys(range(64), 1) | often, 1000), 3)
    assert all(any(mask >> bit & 1 for bit in often) for mask in chosen)
