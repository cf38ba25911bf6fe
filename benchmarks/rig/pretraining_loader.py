"""What Ray is compared with: a torch DataLoader in front of a trainer that encodes for itself, before each step.

As the published system that trained Stable Diffusion 2 does in its baseline: the loader's workers decode and cut, the
trainer's process runs VAE and text encoders on a whole batch and then makes its step, on one device, one after the
other.

Shapes: B rows; C = 4, h, w = pixels / 8; L = 77 tokens; D, P widths of the text.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from giornata.diffusion.encode.captions import encode
from giornata.diffusion.encode.decoding import decode
from giornata.pretrain.data import columns
from giornata.pretrain.data.shards import read_rows
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.encoding.encoder import encoder_dtype
from giornata.pretrain.encoding.frozen_encoder import load_frozen
from giornata.pretrain.encoding.transforms import Cutting
from giornata.pretrain.feeding.feed import Batch
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingProgress
from giornata.pretrain.training.trainer import Trainer, TrainingRun
from giornata.protocol.pretraining import PretrainConfig

SIZES = (
    columns.HEIGHT,
    columns.WIDTH,
    columns.CROP_TOP,
    columns.CROP_LEFT,
    columns.TARGET_HEIGHT,
    columns.TARGET_WIDTH,
)


class CutPictures(IterableDataset):
    """Rows of the phase as pixels, of each `workers`-th portion in each worker."""

    def __init__(self, config: PretrainConfig, rows_of: RowsOfPhase) -> None:
        self._config, self._rows_of, self._source = config, rows_of, source_manifest(config)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        mine, of = (0, 1) if info is None else (info.id, info.num_workers)
        config = self._config
        cutting = Cutting.of(config.data, seed=config.seed, resolution=config.phases[0].resolution)
        wanted = (columns.KEY, columns.IMAGE, columns.CAPTION)
        for place, portion in enumerate(self._rows_of.portions()):
            if place % of != mine:
                continue
            order, name = self._rows_of.in_order(portion), self._source.shards[portion.shard].name
            tables = read_rows(Storage.at(config.data.shards), name, order, columns=wanted, at_once=64)
            rows = (row for table in tables for row in table.to_pylist())
            for number, row in zip(order, rows, strict=True):
                cut = cutting.cut(decode(row[columns.IMAGE]), row[columns.KEY], portion.epoch)
                yield {**row, **cut, columns.IMAGE: None, "use": (portion.number, number), "epoch": portion.epoch}


def collated(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of rows of one size: pixels_BHWC as uint8, captions, and what names them."""
    height, width = rows[0][columns.TARGET_HEIGHT], rows[0][columns.TARGET_WIDTH]
    pixels = [np.frombuffer(row[columns.PIXELS], np.uint8).reshape(height, width, 3) for row in rows]
    return {
        "pixels_BHWC": torch.from_numpy(np.stack(pixels)),
        "captions": [row[columns.CAPTION] for row in rows],
        "uses": [row["use"] for row in rows],
        "keys": [row[columns.KEY] for row in rows],
        "epochs": [row["epoch"] for row in rows],
        "time_ids_B6": torch.tensor([[row[name] for name in SIZES] for row in rows], dtype=torch.float32),
    }


class WholeBatches:
    """The frozen encoders on whole batches, on any device: quicker on a CPU than one row at a time."""

    def __init__(self, config: PretrainConfig, device: torch.device) -> None:
        self._frozen = load_frozen(config.model, seed=config.seed, dtype=encoder_dtype(device))
        self._device = device
        for module in (self._frozen.vae, *self._frozen.text_encoders):
            module.requires_grad_(False).eval().to(device)

    @torch.no_grad()
    def batch(self, loaded: Mapping[str, Any]) -> Batch:
        """What a trainer takes. Latents and text go to the host, as this project's trainers draw noise there."""
        vae: Any = self._frozen.vae
        pixels_BCHW = loaded["pixels_BHWC"].to(self._device, non_blocking=True).permute(0, 3, 1, 2)
        posterior = vae.encode(pixels_BCHW.float().div(127.5).sub(1.0).to(vae.dtype)).latent_dist
        text = encode(
            self._frozen.tokenizers,
            self._frozen.text_encoders,
            loaded["captions"],
            family=self._frozen.family,
            truncation=True,
        )
        return Batch(
            uses=loaded["uses"],
            keys=loaded["keys"],
            epochs=loaded["epochs"],
            mean_BCHW=posterior.mean.half().cpu(),
            logvar_BCHW=posterior.logvar.half().cpu(),
            prompt_BLD=text.prompt_BLD.half().cpu(),
            pooled_BP=None if text.pooled_BP is None else text.pooled_BP.half().cpu(),
            time_ids_B6=loaded["time_ids_B6"],
        )


def train_with_loader(run: TrainingRun, *, workers: int) -> None:
    """All of the first phase: load, encode, step."""
    config, rows = run.config, run.config.train.global_batch_size
    channel = Channel()
    loader = DataLoader(
        CutPictures(config, run.phases[0]),
        batch_size=rows,
        num_workers=workers,
        collate_fn=collated,
        prefetch_factor=4,
        drop_last=True,
        pin_memory=run.device.type == "cuda",
    )
    with ExitStack() as stack:
        trainer = Trainer(run, channel, stack)
        progress = trainer.restore()
        trainer.prepare(progress)
        encoders = WholeBatches(config, run.device)
        batches = iter(loader)
        for _ in range(config.phases[0].samples // rows):
            _step(run, trainer, progress, encoders, batches)


def _step(
    run: TrainingRun,
    trainer: Trainer,
    progress: TrainingProgress,
    encoders: WholeBatches,
    batches: Iterator[Mapping[str, Any]],
) -> None:
    began_s = time.monotonic()
    loaded = next(batches)
    waited_s = time.monotonic() - began_s
    example = trainer.draws.example(encoders.batch(loaded), 0)
    _, numbers = trainer.step(progress, [example], len(loaded["uses"]))
    run.report({**numbers, "waited_s": waited_s})
