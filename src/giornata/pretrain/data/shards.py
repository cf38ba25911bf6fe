"""Parquet files of shards: normalized shards are written here, and rows of any shard are read by their numbers."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from giornata.pretrain.data import columns
from giornata.pretrain.data.manifest import Shard
from giornata.pretrain.data.storage import Storage

ROWS_PER_GROUP = 128
_COMPRESSION = {name: "none" if name == columns.IMAGE else "zstd" for name in columns.SOURCE.names}
_COMPRESSION[f"{columns.CAPTIONS}.list.element"] = "zstd"


def shard_name(number: int) -> str:
    return f"shard-{number:05}.parquet"


def write_shard(storage: Storage, number: int, content: bytes | memoryview, rows: int) -> Shard:
    """Write the file of a shard, over an earlier one, and return its line of the manifest."""
    name = shard_name(number)
    storage.write(name, content)
    return Shard(name=name, rows=rows, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def shard_bytes(rows: pa.Table) -> memoryview:
    """A normalized shard of rows of a columns.source_schema, sorted by their keys. Equal rows give equal bytes."""
    schema = columns.source_schema(several=columns.CAPTIONS in rows.column_names)
    order = pc.sort_indices(rows, sort_keys=[(columns.KEY, "ascending")])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, schema, compression=_COMPRESSION, use_dictionary=False, write_statistics=[columns.KEY]
    ) as writer:
        # Group by group: an array of pictures may not hold more than 2 GB
        for start in range(0, len(order), ROWS_PER_GROUP):
            group = rows.select(schema.names).take(order.slice(start, ROWS_PER_GROUP))
            writer.write_table(group.cast(schema).combine_chunks(), row_group_size=ROWS_PER_GROUP)
    return memoryview(sink.getvalue())


def read_rows(
    storage: Storage, name: str, rows: Sequence[int], *, columns: Sequence[str], at_once: int
) -> Iterator[pa.Table]:
    """Tables of at most `at_once` of these rows, in this order. Columns that the shard lacks are left out.

    The row groups of these rows are in memory meanwhile. Raises OSError when the shard cannot be read, ValueError
    when it has fewer rows.
    """
    with storage.open(name) as stream:
        file = pq.ParquetFile(stream, pre_buffer=True)
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        ends = [0, *accumulate(sizes)]
        if rows and not 0 <= min(rows) <= max(rows) < ends[-1]:
            raise ValueError(f"{storage / name} has {ends[-1]} rows, and row {max(rows)} is wanted")
        group_of_row = [bisect_right(ends, row) - 1 for row in rows]
        groups = sorted(set(group_of_row))
        if not groups:
            return
        table = file.read_row_groups(groups, columns=list(columns))
    # The table has the groups that were read, one after the other
    first_of = dict(zip(groups, accumulate((sizes[group] for group in groups), initial=0), strict=False))
    places = [first_of[group] + row - ends[group] for row, group in zip(rows, group_of_row, strict=True)]
    for first in range(0, len(places), at_once):
        yield table.take(pa.array(places[first : first + at_once]))
