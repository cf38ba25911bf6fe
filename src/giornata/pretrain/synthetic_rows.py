"""Made-up rows for `giornata pretrain run --synthetic`: what trainers and encoders would be handed, at once.

Shapes: B rows of one size; H, W = pixels; C = 3, or 4 channels of latents with h, w = pixels / 8; L = 77 tokens;
D, P widths of the text.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import torch

from giornata.pretrain.data import columns
from giornata.pretrain.feeding.examples import EmptyPrompt
from giornata.pretrain.feeding.feed import Batch, Feed
from giornata.pretrain.feeding.ledger import Ledger
from giornata.pretrain.feeding.rows_of_phase import share
from giornata.pretrain.training.models import TOKENS, unet_on_meta, widths
from giornata.protocol.pretraining import LATENT_SIDE_PX, Architecture, Mode, PretrainConfig

CAPTION = "a photograph of a small boat on a lake in the evening, with mountains behind it"
LATENT_CHANNELS, HALF_BYTES = 4, 2
TARGET = (columns.TARGET_HEIGHT, columns.TARGET_WIDTH)


def synthetic_feeds(config: PretrainConfig, *, rank: int, world: int) -> Callable[[int, Ledger], Iterator[Feed]]:
    """Rows of nothing, at once, in batches as they come from a real stream."""
    batch = config.train.global_batch_size
    mine = share(batch, rank=rank, world=world)
    before = sum(share(batch, rank=other, world=world) for other in range(rank))

    def feeds(phase: int, _: Ledger) -> Iterator[Feed]:
        settings = config.phases[phase]
        at_once = settings.train_batch_size or mine
        for first in range(before, settings.samples, batch):
            sizes = [min(at_once, mine - done) for done in range(0, mine, at_once)]
            starts = [first + sum(sizes[:place]) for place in range(len(sizes))]
            batches = [
                synthetic_batch(config.model.architecture, settings.resolution, start, rows)
                for start, rows in zip(starts, sizes, strict=True)
            ]
            yield Feed(batches=batches, unreadable=(), wait_s=0.0)

    return feeds


def synthetic_batch(architecture: Architecture, resolution: int, first: int, rows: int) -> Batch:
    """Rows `first` and following of one long shard."""
    side = resolution // LATENT_SIDE_PX
    text, pooled = widths(unet_on_meta(architecture))
    place = [resolution, resolution, 0, 0, resolution, resolution]
    return Batch(
        uses=[(0, row) for row in range(first, first + rows)],
        keys=[f"synthetic-{row}" for row in range(first, first + rows)],
        epochs=[0] * rows,
        mean_BCHW=torch.zeros(rows, 4, side, side, dtype=torch.float16),
        logvar_BCHW=torch.zeros(rows, 4, side, side, dtype=torch.float16),
        prompt_BLD=torch.zeros(rows, TOKENS, text, dtype=torch.float16),
        pooled_BP=None if pooled is None else torch.zeros(rows, pooled, dtype=torch.float16),
        time_ids_B6=torch.tensor([place] * rows, dtype=torch.float32),
    )


def synthetic_empty(architecture: Architecture) -> EmptyPrompt:
    text, pooled = widths(unet_on_meta(architecture))
    return EmptyPrompt(
        prompt_LD=torch.zeros(TOKENS, text, dtype=torch.float16),
        pooled_P=None if pooled is None else torch.zeros(pooled, dtype=torch.float16),
    )


def to_encode(mode: Mode, resolution: int, rows: int) -> pa.Table:
    """What arrives at an encoder: pictures that are cut, or in mode hybrid latents without text."""
    use = {columns.PORTION: 0, columns.EPOCH: 0, columns.SHARD: 0, columns.KEY: "", columns.CAPTION: CAPTION}
    size = dict.fromkeys((columns.HEIGHT, columns.WIDTH, *TARGET), resolution)
    place = {columns.CROP_TOP: 0, columns.CROP_LEFT: 0, columns.REASON: ""}
    row = {**use, **size, **place}
    if mode is Mode.HYBRID:
        latent = bytes(LATENT_CHANNELS * (resolution // LATENT_SIDE_PX) ** 2 * HALF_BYTES)
        arrays = {columns.MEAN: latent, columns.LOGVAR: latent, columns.PROMPT: b"", columns.POOLED: b""}
        return pa.Table.from_pylist([{**row, columns.ROW: n, **arrays} for n in range(rows)], schema=columns.FED)
    drawn_BHWC = np.random.default_rng(0).integers(0, 256, (rows, resolution, resolution, 3), dtype=np.uint8)
    cut = [{**row, columns.ROW: n, columns.PIXELS: drawn_BHWC[n].tobytes()} for n in range(rows)]
    return pa.Table.from_pylist(cut, schema=columns.CUT)
