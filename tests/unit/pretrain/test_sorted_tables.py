"""Sorted tables are gone through whole, and a range holds no more than it may."""

from collections import Counter
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from giornata.pretrain.data.sorted_tables import BYTES_OF_A_ROW, SortedTables, threads_that_can_sort

INTEGERS = st.integers(0, 2**64 - 1) | st.integers(0, 3) | st.just(2**64 - 1)
BLOBS = st.binary(max_size=9) | st.sampled_from([b"", b"\0", b"a", b"a\0"])


def in_ranges(values: list[int] | list[bytes], kind: str, rows_at_once: int) -> list[list[int] | list[bytes]]:
    """What the statement of each range finds."""
    with duckdb.connect(config={"threads": 1}) as connection:
        tables = SortedTables(connection=connection, rows_at_once=rows_at_once)
        tables.run(f"CREATE TABLE given (each {kind})")
        if values:
            connection.executemany("INSERT INTO given VALUES (?)", [[each] for each in values])
        tables.sort("ordered", "FROM given", "each")
        query = "SELECT each FROM ordered WHERE each >= $low AND each < $high ORDER BY each"
        return [
            [each for (each,) in connection.execute(query, part).fetchall()]
            for part in tables.ranges("ordered", "each")
        ]


@settings(max_examples=25)
@given(st.lists(INTEGERS, max_size=30), st.integers(1, 7))
def test_ranges_of_integers_hold_every_row_once_and_not_too_many(values: list[int], rows_at_once: int) -> None:
    found = in_ranges(values, "UBIGINT", rows_at_once)
    assert [each for part in found for each in part] == sorted(values)
    for part in found:
        assert len(part) - Counter(part)[part[0]] < rows_at_once  # the first may be there any number of times


@settings(max_examples=25)
@given(st.lists(BLOBS, max_size=30), st.integers(1, 7))
def test_ranges_of_bytes_hold_every_row_once_and_not_too_many(values: list[bytes], rows_at_once: int) -> None:
    found = in_ranges(values, "BLOB", rows_at_once)
    assert [each for part in found for each in part] == sorted(values)
    for part in found:
        assert len(part) - Counter(part)[part[0]] < rows_at_once


def test_rows_are_numbered_in_their_order_also_where_many_threads_write_them() -> None:
    with duckdb.connect(config={"threads": 4}) as connection:
        tables = SortedTables(connection=connection, rows_at_once=1000)
        tables.sort("ordered", "SELECT hash(range) AS each FROM range(700_000)", "each")
        wrong = "SELECT count(*) FROM (SELECT each < lag(each) OVER (ORDER BY rowid) AS less FROM ordered) WHERE less"
        assert connection.execute(wrong).fetchall() == [(0,)]
        assert tables.count("ordered") == 700_000


def test_a_file_in_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()
    tables = SortedTables.opened(folder, memory_bytes=64 << 20, threads=1)
    try:
        tables.sort("ordered", "SELECT range AS each FROM range(1000)", "each")
        assert [batch.num_rows for batch in tables.batches("FROM ordered WHERE each < $high", {"high": 7})] == [7]
        assert tables.rows_at_once == (64 << 20) // BYTES_OF_A_ROW
        tables.drop("ordered", "absent")
        with pytest.raises(duckdb.CatalogException):
            tables.count("ordered")
    finally:
        tables.close()
    assert (folder / "rows.duckdb").exists()


def test_so_many_threads_sort_as_have_the_memory_for_it() -> None:
    def threads(rows: int, memory_mib: int) -> int:
        return threads_that_can_sort(rows, memory_bytes=memory_mib << 20, most=16)

    assert threads(0, 64) == threads(1_000_000, 4096) == 16
    assert threads(10_000_000, 256) == 3
    assert threads(2_000_000_000, 4096) == 3
    assert threads(2_000_000_000, 64) == 1
    assert threads(40_000_000, 2048) == threads(10_000_000, 1024)  # memory as the square root of the rows
