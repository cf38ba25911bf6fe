"""The stages of the graph, called as Ray calls them: the same rows and latents in every mode, without a Ray.

`tests/system/pretrain/test_modes.py` has the graph itself.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.data import columns
from giornata.pretrain.data.manifest import Manifest, Shard
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encode import encode
from giornata.pretrain.encoding.encode_shards import EncodeRows, encode_cut
from giornata.pretrain.encoding.encoded import latents_storage, source_manifest
from giornata.pretrain.encoding.encoder import Encoder, open_encoder
from giornata.pretrain.encoding.transforms import Cutting
from giornata.pretrain.feeding.graph import (
    GROUP,
    LEAST_READING_BYTES,
    STORED,
    WITHOUT_TEXT,
    ReadLatents,
    ReadPictures,
    grouped,
    packed,
    reading,
)
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase
from giornata.pretrain.recipes import sdxl_tiny
from giornata.protocol.pretraining import Mode, PretrainConfig

SHARDS, ROWS, SAMPLES = 3, 8, 30
BROKEN = 5
PHASE = RowsOfPhase(seed=0, phase=0, samples=SAMPLES, shard_rows=(ROWS,) * SHARDS)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return open_encoder(sdxl_tiny().model, seed=0, device="cpu")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> PretrainConfig:
    folder = tmp_path_factory.mktemp("stages")
    write_shards(folder / "shards", shards=SHARDS, rows=ROWS, sizes=((64, 64), (96, 64)), broken=(BROKEN,))
    config = sdxl_tiny(str(folder))
    config = replace(
        config, data=replace(config.data, enable_bucket=True, bucket_reso_steps=8, max_quarantined_share=1)
    )
    encode(config, encoder)
    return config


def groups(rows_of_a_task: int = 10) -> list[pa.Table]:
    """A table for each reading task."""
    return [pa.table({GROUP: [packed(group)]}) for group in grouped(list(PHASE.portions()), rows_of_a_task)]


def rows_fed(config: PretrainConfig, encoder: Encoder, mode: Mode) -> pa.Table:
    names = tuple(shard.name for shard in source_manifest(config).shards)
    reader: ReadLatents | ReadPictures
    if mode in {Mode.OFFLINE, Mode.HYBRID}:
        wanted = STORED if mode is Mode.OFFLINE else WITHOUT_TEXT
        reader = ReadLatents(latents_storage(config, 32), names, PHASE, wanted)
    else:
        cutting = Cutting.of(config.data, seed=config.seed, resolution=32)
        reader = ReadPictures(Storage.at(Path(config.data.shards)), names, PHASE, cutting)
    tables: Iterator[pa.Table] = (table for group in groups() for table in reader(group))
    if mode in {Mode.HYBRID, Mode.ONLINE}:
        tables = map(EncodeRows(replace(config, encode=replace(config.encode, mode=mode))), tables)
    if mode is Mode.COLOCATED:
        tables = (encode_cut(encoder, table, at_once=3) for table in tables)
    return pa.concat_tables(tables)


@pytest.mark.parametrize("mode", Mode)
def test_every_mode_feeds_the_same_rows_to_the_bit(config: PretrainConfig, encoder: Encoder, mode: Mode) -> None:
    fed = rows_fed(config, encoder, mode)
    assert fed.schema.equals(columns.FED)
    uses = list(zip(fed.column(columns.PORTION).to_pylist(), fed.column(columns.ROW).to_pylist(), strict=True))
    assert uses == [(portion.number, row) for portion in PHASE.portions() for row in PHASE.in_order(portion)]
    bad = [row for row in fed.to_pylist() if row[columns.REASON]]
    assert bad
    assert {row[columns.SHARD] * ROWS + row[columns.ROW] for row in bad} == {BROKEN}
    assert fed.equals(rows_fed(config, encoder, Mode.OFFLINE))


def test_read_pictures_stage_gives_every_sample_as_cut_picture(config: PretrainConfig) -> None:
    names = tuple(shard.name for shard in source_manifest(config).shards)
    cutting = Cutting.of(config.data, seed=config.seed, resolution=32)
    reader = ReadPictures(Storage.at(Path(config.data.shards)), names, PHASE, cutting)
    tables = [table for group in groups() for table in reader(group)]
    assert all(table.schema.equals(columns.CUT) for table in tables)
    assert sum(len(table) for table in tables) == SAMPLES


def test_no_portions_are_no_rows(config: PretrainConfig) -> None:
    reader = ReadLatents(latents_storage(config, 32), (), PHASE, STORED)
    assert list(reader(pa.table({GROUP: [packed([])]}))) == []


def test_reading_tasks_declare_what_the_largest_shard_takes() -> None:
    def declared(*sizes_bytes: int, nodes_bytes: tuple[float, ...] = ()) -> int:
        shards = tuple(Shard(name="a", rows=1, bytes=size, sha256="") for size in sizes_bytes)
        return int(reading(Manifest(shards=shards), nodes_bytes)["memory"])

    assert declared(1 << 20) == LEAST_READING_BYTES
    assert declared(1 << 20, 10**9, 10**8) == 2_560_000_000
    assert declared(10**9, nodes_bytes=(10**9, 1.5e9)) == 1_500_000_000, "a task that no node can take never begins"
    assert declared(10**9, nodes_bytes=(10**12,)) == 2_560_000_000
