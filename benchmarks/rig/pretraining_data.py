"""Drawn pictures with captions as shards for pre-training, and a feed of what is encoded, without Ray."""

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa

from giornata.pretrain.batch import Feed
from giornata.pretrain.demo import run_stage
from giornata.pretrain.encode import encode
from giornata.pretrain.encoded import encoded_manifest, latents_storage, source_manifest
from giornata.pretrain.encoders import device_of_an_encoder, open_encoder
from giornata.pretrain.example_data import write_example
from giornata.pretrain.feed import Feeder
from giornata.pretrain.ledger import Ledger
from giornata.pretrain.read_portions import GROUP, STORED, ReadLatents, packed
from giornata.pretrain.rows_of_phase import RowsOfPhase
from giornata.protocol.pretraining import PretrainConfig


def ingested(config: PretrainConfig, folder: Path, *, rows: int, side_px: int) -> None:
    """Draw `rows` pictures and ingest them to the configuration's shards, by the shipped program."""
    write_example(folder / "source", rows=rows, oddities=0, side_px=side_px)
    options = json.dumps(asdict(replace(config.ingest, min_side_px=side_px)))
    run_stage("giornata.pretrain.ingest", [str(folder / "source"), config.data.shards, "--options", options], folder)


def encoded(config: PretrainConfig) -> None:
    """Encode them, in this process."""
    encoder = open_encoder(config.model, seed=config.seed, device=device_of_an_encoder(config))
    with contextlib.redirect_stdout(io.StringIO()):
        encode(config, encoder)


def read_here(config: PretrainConfig, rows_of: Sequence[RowsOfPhase]) -> Callable[[int, Ledger], Iterator[Feed]]:
    """Feeds of the encoded shards in the order of training, read in the trainer's own process: every run with one
    seed gets the same steps."""
    source = source_manifest(config)

    def feeds(phase: int, ledger: Ledger) -> Iterator[Feed]:
        resolution = config.phases[phase].resolution
        names = tuple(shard.name for shard in encoded_manifest(config, resolution, source).shards)
        reader = ReadLatents(latents_storage(config, resolution), names, rows_of[phase], STORED)
        feeder = Feeder(reader(pa.table({GROUP: [packed(list(ledger.remaining()))]})))
        while (feed := feeder.take(config.train.global_batch_size)).rows:
            yield feed

    return feeds
