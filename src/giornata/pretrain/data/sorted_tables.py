"""Tables that are larger than memory: sorted on the disk by one column, and gone through range by range.

Sorting needs memory that grows with the square root of the rows (`threads_that_can_sort`). What joins and groups is
asked of one range at a time, so that it holds at most about `rows_at_once` rows, however many there are: a statement
says `WHERE column >= $low AND column < $high` of every table that it holds, and a sorted table is read only where
such rows are.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa

BATCH_ROWS = 100_000
BYTES_OF_A_ROW = 512
"""Memory for a row of a range that is being joined or grouped, with all that this needs besides."""
SORTED_ROW_BYTES = 72
"""Of the widest rows that are sorted: a key of 32 bytes, its address, three numbers."""
_MIB_FOR_A_MIB = 10
"""A thread with m MiB sorts m² / this MiB. In trials (DuckDB 2.0) it was between 3.7 and 6."""

Range = dict[str, Any]
"""Values of `low` and `high`, half-open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedTables:
    """Over `connection`. A range has `rows_at_once` rows, and more only when one value has them."""

    connection: duckdb.DuckDBPyConnection
    rows_at_once: int

    @classmethod
    def opened(cls, folder: Path, *, memory_bytes: int, threads: int) -> Self:
        """In a new file in the folder, which also takes what does not fit into memory."""
        connection = duckdb.connect(config=_limits(folder, memory_bytes, threads))
        # Nothing is read again after a crash: no log, and nothing waits for the disk
        file = str(folder / "rows.duckdb").replace("'", "''")
        connection.execute(f"ATTACH '{file}' AS tables (RECOVERY_MODE NO_WAL_WRITES)")
        connection.execute("USE tables")
        return cls(connection=connection, rows_at_once=max(1, memory_bytes // BYTES_OF_A_ROW))

    def close(self) -> None:
        """What was in memory is free; the file stays."""
        self.connection.close()

    def run(self, statement: str, values: Mapping[str, Any] | None = None) -> None:
        """A statement that answers nothing."""
        self.connection.execute(statement, dict(values or {}))

    def answer(self, query: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The few rows of what it asks."""
        return self.connection.execute(query, dict(values or {})).fetchall()

    def count(self, table: str) -> int:
        """Rows of the table."""
        return int(self.answer(f"SELECT count(*) FROM {table}")[0][0])

    def sort(self, table: str, query: str, by: str) -> None:
        """Create the table from the query. Rows are numbered (rowid) in their order, from 0 on."""
        # Elsewhere rows may be written in any order, which is quicker
        self.run("SET preserve_insertion_order = true")
        self.run(f"CREATE OR REPLACE TABLE {table} AS {query} ORDER BY {by}")
        self.run("SET preserve_insertion_order = false")

    def ranges(self, table: str, by: str) -> Iterator[Range]:
        """Of a table that was sorted by that column of integers or bytes: every row is in one of them."""
        some = self.answer(f"SELECT {by} FROM {table} WHERE rowid % {self.rows_at_once} = 0")
        _, last = self.ends(table, by)
        if last is not None:
            edges = [*sorted({each for (each,) in some}), last + (b"\0" if isinstance(last, bytes) else 1)]
            yield from ({"low": low, "high": high} for low, high in pairwise(edges))

    def ends(self, table: str, column: str) -> tuple[Any, Any]:
        """Its least and its greatest value; None for both where there is no row."""
        least, greatest = self.answer(f"SELECT min({column}), max({column}) FROM {table}")[0]
        return least, greatest

    def batches(self, query: str, values: Range) -> Iterator[pa.RecordBatch]:
        """Its rows as they come. Nothing else can be asked before the last of them."""
        yield from self.connection.sql(query, params=values).to_arrow_reader(BATCH_ROWS)

    def drop(self, *tables: str) -> None:
        """They need not exist. Their room on the disk is used again."""
        for table in tables:
            self.run(f"DROP TABLE IF EXISTS {table}")


def threads_that_can_sort(rows: int, *, memory_bytes: int, most: int) -> int:
    """As many as `most`, and fewer where that many could not sort so many rows within this memory; at least one.

    Each thread makes runs of its share of the memory and holds a piece of every run when they are merged: what it can
    sort grows with the square of its share.
    """
    share_mib = math.sqrt(_MIB_FOR_A_MIB * max(1, rows) * SORTED_ROW_BYTES / 2**20)
    return max(1, min(most, int(memory_bytes / 2**20 / share_mib)))


def _limits(folder: Path, memory_bytes: int, threads: int) -> dict[str, str | int | bool | float | list[str]]:
    return {
        "memory_limit": f"{memory_bytes >> 20}MiB",
        "temp_directory": str(folder / "spilled"),
        "preserve_insertion_order": False,
        # How many rows there are is not known to it: joins keep in memory what is written last, which is the smaller
        "disabled_optimizers": "join_order,build_side_probe_side",
        # Nothing is fetched from anywhere
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "threads": threads,
    }
