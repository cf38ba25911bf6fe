"""Equal rows give equal bytes, whatever came first; large shards are written group by group."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from giornata.pretrain.data import columns
from giornata.pretrain.data.shards import ROWS_PER_GROUP, shard_bytes


def rows(count: int) -> list[dict[str, object]]:
    return [
        {
            columns.KEY: f"{(number * 7919) % count:064x}",
            columns.IMAGE: bytes([number % 256]) * 50,
            columns.CAPTION: f"picture {number}",
            columns.WIDTH: number,
            columns.HEIGHT: number + 1,
        }
        for number in range(count)
    ]


def test_bytes_do_not_depend_on_the_order_or_on_how_rows_came_together() -> None:
    given = rows(300)
    whole = pa.Table.from_pylist(given, columns.SOURCE)
    backwards = [pa.Table.from_pylist(given[place : place + 7], columns.SOURCE) for place in range(0, 300, 7)][::-1]
    assert bytes(shard_bytes(whole)) == bytes(shard_bytes(pa.concat_tables(backwards)))
    changed = pa.Table.from_pylist([*given[:-1], given[-1] | {columns.CAPTION: "x"}], columns.SOURCE)
    assert bytes(shard_bytes(whole)) != bytes(shard_bytes(changed))


def test_all_captions_are_kept_where_rows_have_several() -> None:
    schema = columns.source_schema(several=True)
    given = [row | {columns.CAPTIONS: [str(row[columns.CAPTION]), "another"]} for row in rows(3)]
    read = pq.ParquetFile(io.BytesIO(shard_bytes(pa.Table.from_pylist(given, schema)))).read()
    assert read.schema == schema
    assert read.to_pylist() == sorted(given, key=lambda row: str(row[columns.KEY]))


def test_rows_are_in_order_of_their_keys_in_groups() -> None:
    given = rows(300)
    content = shard_bytes(pa.Table.from_pylist(given, columns.SOURCE))
    file = pq.ParquetFile(io.BytesIO(content))
    assert file.read().to_pylist() == sorted(given, key=lambda row: str(row[columns.KEY]))
    assert file.metadata.row_group(0).num_rows == ROWS_PER_GROUP
    assert file.schema_arrow == columns.SOURCE
