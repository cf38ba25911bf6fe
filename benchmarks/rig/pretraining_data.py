"""Drawn pictures with captions as shards for pre-training, and a feed of what is encoded, without Ray."""

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from examples.pretrain_demo.example_data import ExampleRow, write_example
from PIL import Image

from giornata.pretrain.data import columns
from giornata.pretrain.data.manifest import MANIFEST, Manifest
from giornata.pretrain.data.shards import shard_bytes, write_shard
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encode import encode
from giornata.pretrain.encoding.encoded import encoded_manifest, latents_storage, source_manifest
from giornata.pretrain.encoding.encoder import device_of_an_encoder, open_encoder
from giornata.pretrain.feeding.feed import Feed, Feeder
from giornata.pretrain.feeding.graph import GROUP, STORED, ReadLatents, packed
from giornata.pretrain.feeding.ledger import UseLedger
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase
from giornata.protocol.pretraining import PretrainConfig

ROWS_OF_A_SHARD = 100


def drawn(config: PretrainConfig, folder: Path, *, rows: int, side_px: int) -> None:
    """Draw `rows` pictures and write the configuration's shards of them, as an ingest does; without Ray."""
    example = write_example(folder / "source", rows=rows, oddities=0, side_px=side_px)
    made = [_source_row(row) for row in example.rows]
    storage = Storage.at(config.data.shards)
    parts = [made[first : first + ROWS_OF_A_SHARD] for first in range(0, len(made), ROWS_OF_A_SHARD)]
    shards = [
        write_shard(storage, number, shard_bytes(pa.Table.from_pylist(part, columns.SOURCE)), len(part))
        for number, part in enumerate(parts)
    ]
    storage.write(MANIFEST, Manifest(shards=tuple(shards), about={"made": "for a benchmark"}).to_bytes())


def _source_row(row: ExampleRow) -> dict[str, Any]:
    content = row.image or b""
    with Image.open(io.BytesIO(content)) as picture:
        width, height = picture.size
    return {
        columns.KEY: hashlib.sha256(content).hexdigest(),
        columns.IMAGE: content,
        columns.CAPTION: row.caption,
        columns.WIDTH: width,
        columns.HEIGHT: height,
    }


def encoded(config: PretrainConfig) -> None:
    """Encode them, in this process."""
    encoder = open_encoder(config.model, seed=config.seed, device=device_of_an_encoder(config))
    with contextlib.redirect_stdout(io.StringIO()):
        encode(config, encoder)


def read_here(config: PretrainConfig, rows_of: Sequence[RowsOfPhase]) -> Callable[[int, UseLedger], Iterator[Feed]]:
    """Feeds of the encoded shards in the order of training, read in the trainer's own process: every run with one
    seed gets the same steps."""
    source = source_manifest(config)

    def feeds(phase: int, ledger: UseLedger) -> Iterator[Feed]:
        resolution = config.phases[phase].resolution
        names = tuple(shard.name for shard in encoded_manifest(config, resolution, source).shards)
        reader = ReadLatents(latents_storage(config, resolution), names, rows_of[phase], STORED)
        feeder = Feeder(reader(pa.table({GROUP: [packed(list(ledger.remaining()))]})))
        while (feed := feeder.take(config.train.global_batch_size)).rows:
            yield feed

    return feeds
