"""Writing normalised shards: Parquet files of columns.source_schema, rows in order of their keys. Equal rows give
equal bytes.
"""

import hashlib

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
    """`shard-00000.parquet`."""
    return f"shard-{number:05}.parquet"


def write_shard(storage: Storage, number: int, rows: pa.Table) -> Shard:
    """Write rows of a columns.source_schema in any order as that shard, over an earlier one; twice does no harm."""
    content = shard_bytes(rows)
    storage.write(shard_name(number), content)
    return Shard(
        name=shard_name(number),
        rows=rows.num_rows,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def shard_bytes(rows: pa.Table) -> memoryview:
    """The file."""
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
