"""What one encoder beside a run encodes, and what one processor makes ready for it.

Shapes: H, W = pixels; C = 3; L = 77 tokens.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from giornata.pretrain.data import columns
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encoded import encoded_manifest, latents_storage, source_manifest
from giornata.pretrain.encoding.encoder_actors import EncodeCaptions, EncodePictures
from giornata.pretrain.encoding.encoders import device_of_an_encoder
from giornata.pretrain.encoding.transforms import CUT, Cutting
from giornata.pretrain.feeding.read_portions import GROUP, WITHOUT_TEXT, ReadLatents, ReadPictures, packed
from giornata.pretrain.feeding.schedule import rows_of_phases
from giornata.protocol.pretraining import LATENT_SIDE_PX, Mode, PretrainConfig

WARM_UP_BATCHES = 2
MOST_TABLES = 24
"""Of 64 rows at most (giornata.pretrain.feeding.read_portions): what one processor reads while it is measured."""
CAPTION = "a photograph of a small boat on a lake in the evening, with mountains behind it"
LATENT_CHANNELS, HALF_BYTES = 4, 2


class EncoderOnTrial:
    """An encoder as a run has it, in an actor of its own. Its batches are synthetic: what a picture shows does not
    change what it costs, and captions are always filled up to 77 tokens."""

    def __init__(self, config: PretrainConfig) -> None:
        self._config = config
        self._encode = EncodeCaptions(config) if config.encode.mode is Mode.HYBRID else EncodePictures(config)

    def device(self) -> str:
        """As it calls itself."""
        return torch.cuda.get_device_name() if device_of_an_encoder(self._config) == "cuda" else "CPU"

    def measure(
        self, resolution: int, *, batches: int, clock_s: Callable[[], float] = time.monotonic
    ) -> tuple[list[float], int]:
        """Images/s of each of so many batches after warm-up, and the bytes of a row of what comes out."""
        rows = self._config.encode.encode_batch_size
        made = to_encode(self._config.encode.mode, resolution, rows)
        found, row_bytes = [], 0
        for _ in range(WARM_UP_BATCHES + batches):
            began_s = clock_s()
            fed = self._encode(made)
            found.append(rows / max(1e-9, clock_s() - began_s))
            row_bytes = fed.nbytes // rows
        return found[WARM_UP_BATCHES:], row_bytes


def to_encode(mode: Mode, resolution: int, rows: int) -> pa.Table:
    """What arrives at an encoder: pictures that are cut, or in mode hybrid latents without text."""
    use = {columns.PORTION: 0, columns.EPOCH: 0, columns.SHARD: 0, columns.KEY: "", columns.CAPTION: CAPTION}
    size = dict.fromkeys((columns.HEIGHT, columns.WIDTH, *_TARGET), resolution)
    place = {columns.CROP_TOP: 0, columns.CROP_LEFT: 0, columns.REASON: ""}
    row = {**use, **size, **place}
    if mode is Mode.HYBRID:
        latent = bytes(LATENT_CHANNELS * (resolution // LATENT_SIDE_PX) ** 2 * HALF_BYTES)
        arrays = {columns.MEAN: latent, columns.LOGVAR: latent, columns.PROMPT: b"", columns.POOLED: b""}
        return pa.Table.from_pylist([{**row, columns.ROW: n, **arrays} for n in range(rows)], schema=columns.FED)
    drawn_BHWC = np.random.default_rng(0).integers(0, 256, (rows, resolution, resolution, 3), dtype=np.uint8)
    cut = [{**row, columns.ROW: n, columns.PIXELS: drawn_BHWC[n].tobytes()} for n in range(rows)]
    return pa.Table.from_pylist(cut, schema=CUT)


_TARGET = (columns.TARGET_HEIGHT, columns.TARGET_WIDTH)


def measure_reading(
    config: PretrainConfig, phase: int, *, clock_s: Callable[[], float] = time.monotonic
) -> list[float]:
    """Rows/s of one processor, table by table: what a reading task of this mode does with the first rows of the
    phase. The first table, with which files are opened, counts only where there is no other. Raises InvalidInput when
    there is no data."""
    source = source_manifest(config)
    rows_of = rows_of_phases(replace(config, train=replace(config.train, validation_rows=0)), source)[phase]
    resolution = config.phases[phase].resolution
    names = tuple(shard.name for shard in source.shards)
    reader: Any
    if config.encode.mode is Mode.HYBRID:
        names = tuple(shard.name for shard in encoded_manifest(config, resolution, source).shards)
        reader = ReadLatents(latents_storage(config, resolution), names, rows_of, WITHOUT_TEXT)
    else:
        cutting = Cutting.of(config.data, seed=config.seed, resolution=resolution)
        reader = ReadPictures(Storage.at(config.data.shards), names, rows_of, cutting)
    portions = list(islice(rows_of.portions(), MOST_TABLES))
    found, began_s = [], clock_s()
    for table in islice(reader(pa.table({GROUP: [packed(portions)]})), MOST_TABLES):
        now_s = clock_s()
        found.append(len(table) / max(1e-9, now_s - began_s))
        began_s = now_s
    return found[1:] or found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEncoder:
    """One actor. `start_s`: until it had its model. By phase: rates of batches, and bytes of a row that it made."""

    device: str
    start_s: float
    images_per_s: dict[str, list[float]]
    row_bytes: dict[str, int]


def measure_encoders(
    config: PretrainConfig, *, batches: int, clock_s: Callable[[], float] = time.monotonic
) -> MeasuredEncoder:
    """On the Ray that is there, one encoder on a node such as the run's encoders want."""
    import ray

    from giornata.pretrain.feeding.graph import actor_options

    options = {name: value for name, value in actor_options(config).items() if name != "compute"}
    began_s = clock_s()
    trial = ray.remote(EncoderOnTrial).options(**{"num_cpus": 1, **options}).remote(config)
    try:
        device = ray.get(trial.device.remote())
        start_s = clock_s() - began_s
        found = {
            phase.name: ray.get(trial.measure.remote(phase.resolution, batches=batches)) for phase in config.phases
        }
    finally:
        ray.kill(trial)
    return MeasuredEncoder(
        device=device,
        start_s=start_s,
        images_per_s={name: rates for name, (rates, _) in found.items()},
        row_bytes={name: row_bytes for name, (_, row_bytes) in found.items()},
    )


def measure_reading_on_ray(config: PretrainConfig) -> dict[str, list[float]]:
    """By phase, on one processor of the Ray that is there. Raises InvalidInput when there is no data."""
    import ray

    source = source_manifest(config)
    if config.encode.mode is Mode.HYBRID:
        for phase in config.phases:
            encoded_manifest(config, phase.resolution, source)
    task = ray.remote(measure_reading).options(num_cpus=1)
    return {phase.name: ray.get(task.remote(config, place)) for place, phase in enumerate(config.phases)}
