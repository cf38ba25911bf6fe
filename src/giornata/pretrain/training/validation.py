"""The rows that a run holds back, judged apart from it: validation loss by level of noise, and the pictures."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch
from diffusers import UNet2DConditionModel
from PIL import Image

from giornata.diffusion.objective import Objective
from giornata.pretrain.data import columns
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.encoding.encoder import Encoder
from giornata.pretrain.encoding.transforms import Cutting
from giornata.pretrain.feeding.examples import Draws, examples_of
from giornata.pretrain.feeding.read_portions import GROUP, ReadPictures, packed
from giornata.pretrain.feeding.rows_of_phase import rows_of_phases
from giornata.pretrain.feeding.validation_rows import validation_batches, validation_portions
from giornata.pretrain.training.models import noise_scheduler
from giornata.pretrain.training.parallel import spread
from giornata.pretrain.training.peers import Channel, Peers
from giornata.pretrain.training.step import Losses, Passes
from giornata.protocol.pretraining import PretrainConfig

AT_ONCE = 16


def held_losses(
    config: PretrainConfig,
    unet: UNet2DConditionModel,
    *,
    phase: int,
    encoder: Encoder | None,
    scaling: tuple[float, float],
    device: torch.device,
) -> Losses | None:
    """As the run itself measures it in that phase, with the same noise; None where no rows are held back.

    `encoder` is needed in every mode but offline.
    """
    source = source_manifest(config)
    rows_of = rows_of_phases(config, source)[phase]
    batches = validation_batches(config, phase, rows_of, source, encoder, rank=0, world=1)
    scheduler = noise_scheduler(config.model.prediction_type)
    timesteps = scheduler.config.num_train_timesteps
    draws = Draws(seed=config.seed, timesteps=timesteps, scaling=scaling, purpose="pretrain/validation")
    examples = examples_of(batches, draws, AT_ONCE)
    if not examples:
        return None
    peers = Peers()
    kind, gamma = config.model.prediction_type, config.train.snr_gamma
    objective = Objective(scheduler=scheduler, prediction_type=kind, snr_gamma=gamma)
    passes = Passes(spread(unet, config.train, peers, device), objective, Channel(peers))
    return passes.judge(examples)


def held_pictures(config: PretrainConfig, *, phase: int, most: int) -> tuple[list[Image.Image], list[str]]:
    """At most so many of them with their captions, cut as that phase cuts them."""
    source = source_manifest(config)
    rows_of = rows_of_phases(config, source)[phase]
    cutting = Cutting.of(config.data, seed=config.seed, resolution=config.phases[phase].resolution)
    names = tuple(shard.name for shard in source.shards)
    group = pa.table({GROUP: [packed(validation_portions(rows_of, rank=0, world=1))]})
    pictures, captions = list[Image.Image](), list[str]()
    for table in ReadPictures(Storage.at(config.data.shards), names, rows_of, cutting)(group):
        for row in table.to_pylist():
            if len(pictures) < most and not row[columns.REASON]:
                pictures.append(
                    _picture(row[columns.PIXELS], (row[columns.TARGET_HEIGHT], row[columns.TARGET_WIDTH]))
                )
                captions.append(row[columns.CAPTION])
    return pictures, captions


def _picture(content: bytes, size: Sequence[int]) -> Image.Image:
    return Image.fromarray(np.frombuffer(content, dtype=np.uint8).reshape(*size, 3))
