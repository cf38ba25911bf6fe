"""What looks alike is decided range by range as it is all at once: against asking one picture after the other."""

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from giornata.pretrain.data.likeness import find_alike
from giornata.pretrain.data.sorted_tables import SortedTables

Picture = tuple[int, int, int]
"""key, pixels, hash; its number is its place."""


def decided(pictures: list[Picture], distance: int, rows_at_once: int) -> dict[int, int]:
    """Number of what goes to that of what it is like."""
    with duckdb.connect(config={"threads": 1}) as connection:
        tables = SortedTables(connection=connection, rows_at_once=rows_at_once)
        tables.run("CREATE TABLE sound (key BLOB, number BIGINT, pixels BIGINT, hash UBIGINT)")
        rows = [
            [key.to_bytes(32, "big"), number, pixels, hashed] for number, (key, pixels, hashed) in enumerate(pictures)
        ]
        connection.executemany("INSERT INTO sound VALUES (?, ?, ?, ?)", rows)
        find_alike(tables, distance)
        near = connection.execute("SELECT number, kept FROM near").fetchall()
    assert len(dict(near)) == len(near)
    return dict(near)


def by_definition(pictures: list[Picture], distance: int) -> dict[int, int]:
    """Asked in order; whoever is near one that stays goes, and is like the first of these."""
    kept, goes = list[int](), dict[int, int]()
    for number in sorted(range(len(pictures)), key=lambda each: (-pictures[each][1], pictures[each][0])):
        near = [each for each in kept if (pictures[number][2] ^ pictures[each][2]).bit_count() <= distance]
        if near:
            goes[number] = near[0]
        else:
            kept.append(number)
    return goes


@st.composite
def galleries(draw: st.DrawFn) -> list[Picture]:
    """With copies, chains and hubs: hashes of a few bits that lie together."""
    keys = draw(st.lists(st.integers(1, 200), min_size=1, max_size=30, unique=True))
    hashes = st.integers(0, 127) | st.integers(0, 2**64 - 1)
    return [(key, draw(st.integers(1, 4)), draw(hashes)) for key in keys]


@settings(max_examples=25)
@given(galleries(), st.integers(0, 4), st.sampled_from([1, 2, 5, 12, 40, 1000]))
def test_decided_in_ranges_it_is_what_it_is_one_after_the_other(
    pictures: list[Picture], distance: int, rows_at_once: int
) -> None:
    assert decided(pictures, distance, rows_at_once) == by_definition(pictures, distance)


@pytest.mark.parametrize("rows_at_once", [1, 7, 1000])
def test_a_chain_through_all_ranges(rows_at_once: int) -> None:
    chain = [(place + 1, 1, (1 << place) - 1) for place in range(30)]  # each one bit from the next
    for distance in (1, 2):
        goes = decided(chain, distance, rows_at_once)
        assert goes == by_definition(chain, distance)
        assert sorted({*range(30)} - set(goes)) == list(range(0, 30, distance + 1))


def test_copies_go_where_their_first_goes() -> None:
    pictures = [(1, 1, 0b11), (2, 1, 0b11), (3, 9, 0b10), (4, 1, 0b1 << 50)]
    assert decided(pictures, 1, 1) == {0: 2, 1: 2}
    assert decided(pictures, 0, 1) == {1: 0}
