"""Rows of one shard, by their numbers, in any order: only the row groups and the columns that are needed are read."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from giornata.pretrain.data.storage import Storage


def read_rows(
    storage: Storage, name: str, rows: Sequence[int], *, columns: Sequence[str], at_once: int
) -> Iterator[pa.Table]:
    """Tables of at most `at_once` of these rows, in this order. The wanted row groups are in memory meanwhile.
    Columns that the shard has not are left out.

    Raises OSError when the shard cannot be read, ValueError when it has fewer rows.
    """
    with storage.open(name) as stream:
        file = pq.ParquetFile(stream, pre_buffer=True)
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        ends = list(accumulate(sizes))
        if rows and not 0 <= min(rows) <= max(rows) < (ends or [0])[-1]:
            raise ValueError(f"{storage / name} has {(ends or [0])[-1]} rows, and row {max(rows)} is wanted")
        group_of_row = [bisect_right(ends, row) for row in rows]
        groups = sorted(set(group_of_row))
        if not groups:
            return
        table = file.read_row_groups(groups, columns=list(columns))
    # Where a row of the shard is in what was read: the groups that are missing before its own are left out.
    skipped, kept = dict.fromkeys(groups, 0), 0
    for group in groups:
        skipped[group] = ends[group] - sizes[group] - kept
        kept += sizes[group]
    places = [row - skipped[group] for row, group in zip(rows, group_of_row, strict=True)]
    for first in range(0, len(places), at_once):
        yield table.take(pa.array(places[first : first + at_once]))
