"""How large a benchmark of pre-training is: the model, the steps, and the frozen encoders that go with it.

`tiny` is the recipe `shapes`, whose encoders are light: 16 % of the FLOPs of training. With --encoders as-sd2 its VAE
is twice as wide and has learned nothing, so that encoding weighs about what it weighs for Stable Diffusion 2 at 256
pixels (59 %).
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch.utils.flop_counter import FlopCounterMode

from giornata.diffusion.shapes.shipped import WEIGHTS
from giornata.pretrain.encoding.frozen_encoder import load_frozen
from giornata.pretrain.feeding.feed import TOKENS
from giornata.pretrain.recipes import sd2_base, shapes
from giornata.protocol.pretraining import (
    Architecture,
    Evaluate,
    Mode,
    Model,
    Parallel,
    Phase,
    Precision,
    PretrainConfig,
    Workers,
)

NEVER = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`rows` of a step by resolution, in pixels. `sources`: different pictures, of sides of at least `side_px`."""

    rows: Mapping[int, int]
    sources: int
    side_px: int


SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "tiny": Size(rows={64: 64}, sources=600, side_px=64),
        "sd2": Size(rows={256: 128, 512: 32}, sources=600, side_px=512),
    }
)


def config_of(work: Mapping[str, Any]) -> PretrainConfig:
    """A run of one phase on one trainer. `work`: size, resolution, mode, samples, folder, device, model (None: the
    package's own)."""
    folder, on_gpu = Path(work["folder"]), work["device"] == "cuda"
    size, resolution = work["size"], work["resolution"]
    recipe = sd2_base(str(folder)) if size == "sd2" else shapes(str(folder))
    rows = SIZES[size].rows[resolution]
    train = replace(
        recipe.train,
        global_batch_size=rows,
        parallel=Parallel.DDP,
        mixed_precision=Precision.BF16 if on_gpu else Precision.NO,
        torch_compile=on_gpu,
        channels_last=on_gpu,
        checkpoint_steps=NEVER,
        validation_steps=0,
        validation_rows=0,
        validation_prompts=(),
    )
    return replace(
        recipe,
        name="speed",
        data=replace(recipe.data, shards=str(folder / "shards")),
        model=_model(size, work["model"]),
        encode=replace(
            recipe.encode,
            mode=Mode(work["mode"]),
            latents=str(folder / "latents"),
            store_text=True,
            encode_batch_size=32,
            encoders=1,
        ),
        train=train,
        evaluate=Evaluate(checkpoints=0),
        phases=(Phase(name="only", resolution=resolution, samples=work["samples"], train_batch_size=rows),),
        workers=Workers(use_gpu=on_gpu),
    )


def _model(size: str, folder: str | None) -> Model:
    if size == "sd2":
        return Model(architecture=Architecture.SD2, random_encoders=True)
    return Model(
        architecture=Architecture.SHAPES, prediction_type="v_prediction", pretrained_model_name_or_path=folder
    )


def heavy_encoders(folder: Path) -> Path:
    """The drawing model with a VAE of twice the width that has learned nothing."""
    shutil.copytree(WEIGHTS, folder, ignore=shutil.ignore_patterns("unet", "vae"))
    widths = (16, 32, 64, 128)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae = AutoencoderKL(
            sample_size=64,
            block_out_channels=widths,
            layers_per_block=1,
            norm_num_groups=2,
            latent_channels=4,
            down_block_types=("DownEncoderBlock2D",) * len(widths),
            up_block_types=("UpDecoderBlock2D",) * len(widths),
        )
    vae.save_pretrained(folder / "vae")
    return folder


def encoder_flops(config: PretrainConfig) -> dict[str, int]:
    """Of one picture and its caption: {"vae", "text"}, counted as models.flops_per_picture counts."""
    frozen = load_frozen(config.model, seed=0, dtype=torch.float32)
    side, meta = config.phases[0].resolution, torch.device("meta")
    if frozen.vae is None:
        raise RuntimeError("there is no VAE to count")
    torch.nn.Module.to(frozen.vae, meta)
    with torch.no_grad(), FlopCounterMode(display=False) as images:
        frozen.vae.encode(torch.zeros(1, 3, side, side, device=meta))
    with torch.no_grad(), FlopCounterMode(display=False) as text:
        for encoder in frozen.text_encoders:
            encoder.to(meta)(torch.zeros(1, TOKENS, dtype=torch.int64, device=meta))
    return {"vae": int(images.get_total_flops()), "text": int(text.get_total_flops())}
