"""A source on S3 is read like a folder, and a single object of it like a file."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.contract.pretrain.test_storage import on_s3
from tests.fixtures.pretrain_sources import write_example
from tests.fixtures.seaweed import Seaweed

from giornata.pretrain.data import columns
from giornata.pretrain.data.shards import shard_bytes, write_shard
from giornata.pretrain.data.source_rows import rows_of
from giornata.pretrain.data.sources import Kind, find
from giornata.protocol.pretraining import Ingest


@pytest.mark.parametrize("kind", Kind)
def test_source_on_s3_is_read_like_a_folder(kind: Kind, seaweed: Seaweed, tmp_path: Path) -> None:
    example = write_example(tmp_path, rows=8, kind=kind)
    storage = on_s3(seaweed)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            storage.put(path, str(path.relative_to(tmp_path)))
    source = find(storage.address, Ingest())
    assert source.digest == find(str(tmp_path), Ingest()).digest
    read = [raw.image or b"" for piece in source.pieces for raw in rows_of(source.storage, piece, Ingest())]
    assert read == [row.image or b"" for row in example.rows]
    name, size_bytes = source.files[0]
    place, _, query = storage.address.partition("?")
    single = find(f"{place}/{name}?{query}", Ingest())
    assert single.files == ((name.rpartition("/")[2], size_bytes),)


def test_shard_written_to_s3_is_read_back(seaweed: Seaweed) -> None:
    row = {columns.KEY: "ab", columns.IMAGE: b"x", columns.CAPTION: "a cat", columns.WIDTH: 3, columns.HEIGHT: 4}
    storage = on_s3(seaweed)
    shard = write_shard(storage, 3, shard_bytes(pa.Table.from_pylist([row], columns.SOURCE)), 1)
    assert storage.sizes() == [("shard-00003.parquet", shard.bytes)]
    assert pq.read_table(io.BytesIO(storage.read(shard.name))).to_pylist() == [row]
