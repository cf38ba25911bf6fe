"""The rows that are held back for validation: read, and where need be encoded, by the trainers themselves."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from giornata.pretrain.data.intervals import Intervals
from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encode_rows import encode_captions, encode_cut
from giornata.pretrain.encoding.encoded import encoded_manifest, latents_storage
from giornata.pretrain.encoding.encoder import Encoder
from giornata.pretrain.encoding.transforms import CUT, Cutting
from giornata.pretrain.feeding.batch import Batch
from giornata.pretrain.feeding.feed import Feeder
from giornata.pretrain.feeding.read_portions import GROUP, STORED, WITHOUT_TEXT, ReadLatents, ReadPictures, packed
from giornata.pretrain.feeding.rows_of_phase import Portion, RowsOfPhase
from giornata.protocol.pretraining import Mode, PretrainConfig


def held_batches(
    config: PretrainConfig,
    phase: int,
    rows_of: RowsOfPhase,
    source: Manifest,
    encoder: Encoder | None,
    *,
    rank: int,
    world: int,
) -> list[Batch]:
    """This trainer's part of them, by size. `encoder` is needed in every mode but offline."""
    group = pa.table({GROUP: [packed(held_portions(rows_of, rank=rank, world=world))]})
    stored = config.encode.mode in {Mode.OFFLINE, Mode.HYBRID}
    reader = _latents(config, phase, rows_of, source) if stored else _pictures(config, phase, rows_of, source)
    rows = sum(len(rows) for _, rows in rows_of.left_out)
    return list(Feeder(_encoded(config, reader(group), encoder)).take(rows).batches) if rows else []


def held_portions(rows_of: RowsOfPhase, *, rank: int, world: int) -> list[Portion]:
    """Every `world`-th of the rows, from the one of number `rank` on."""
    every = [(shard, row) for shard, rows in rows_of.left_out for row in rows]
    mine: dict[int, list[int]] = {}
    for shard, row in every[rank::world]:
        mine.setdefault(shard, []).append(row)
    return [
        Portion(number=number, epoch=0, shard=shard, rows=Intervals.of(rows))
        for number, (shard, rows) in enumerate(mine.items())
    ]


def _latents(config: PretrainConfig, phase: int, rows_of: RowsOfPhase, source: Manifest) -> ReadLatents:
    resolution = config.phases[phase].resolution
    names = tuple(shard.name for shard in encoded_manifest(config, resolution, source).shards)
    stored = STORED if config.encode.mode is Mode.OFFLINE else WITHOUT_TEXT
    return ReadLatents(latents_storage(config, resolution), names, rows_of, stored)


def _pictures(config: PretrainConfig, phase: int, rows_of: RowsOfPhase, source: Manifest) -> ReadPictures:
    names = tuple(shard.name for shard in source.shards)
    cutting = Cutting.of(config.data, seed=config.seed, resolution=config.phases[phase].resolution)
    return ReadPictures(Storage.at(config.data.shards), names, rows_of, cutting)


def _encoded(config: PretrainConfig, tables: Iterable[pa.Table], encoder: Encoder | None) -> Iterator[pa.Table]:
    mode, at_once = config.encode.mode, config.encode.encode_batch_size
    for table in tables:
        if mode is Mode.OFFLINE:
            yield table
        elif encoder is None:
            raise RuntimeError("these rows have to be encoded: whoever validates on them needs an encoder")
        elif mode is Mode.HYBRID:
            yield encode_captions(encoder, table, at_once=at_once)
        else:
            yield encode_cut(encoder, table.select(CUT.names), at_once=at_once)
