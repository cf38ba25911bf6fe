"""The least that a picture costs: FLOPs of its UNet passes and of its decoding, and the seconds of a device for them.

FLOPs are counted on models without memory: 2 for each multiplication of matrix products, convolutions and attention.
Text encoders and schedulers are left out; they are a few thousandths.
"""

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.rig.device_rate import device_rate
from benchmarks.rig.picture_sizes import PictureSize

LATENT_SIDE_PX, TOKENS = 8, 77
SDXL_IDS, REFINER_IDS = 6, 5


def picture_flops(size: PictureSize, base: Path, refiner: Path | None) -> int:
    """Return the FLOPs of one picture with guidance: two rows in each pass, then one decoding."""
    passes = size.steps * pass_flops(base, size, ids=SDXL_IDS)
    if refiner is not None:
        passes += size.refiner_steps * pass_flops(refiner, size, ids=REFINER_IDS)
    return 2 * passes + decoding_flops(base, size)


@torch.no_grad()
def pass_flops(folder: Path, size: PictureSize, *, ids: int) -> int:
    """Return the FLOPs of one row in one pass of the UNet. `ids` are the numbers of its micro-conditioning."""
    with torch.device("meta"):
        unet: Any = UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(folder / "unet"))
        pooled = int(unet.config.projection_class_embeddings_input_dim)
        pooled -= ids * int(unet.config.addition_time_embed_dim)
        latents_1CHW = torch.empty(1, 4, size.height // LATENT_SIDE_PX, size.width // LATENT_SIDE_PX)
        prompt_1LD = torch.empty(1, TOKENS, int(unet.config.cross_attention_dim))
        added = {"text_embeds": torch.empty(1, pooled), "time_ids": torch.empty(1, ids)}
        with FlopCounterMode(display=False) as counter:
            unet(latents_1CHW, torch.empty(1), prompt_1LD, added_cond_kwargs=added)
    return int(counter.get_total_flops())


@torch.no_grad()
def decoding_flops(folder: Path, size: PictureSize) -> int:
    """Return the FLOPs of decoding one picture, in one piece."""
    with torch.device("meta"):
        vae: Any = AutoencoderKL.from_config(AutoencoderKL.load_config(folder / "vae"))
        latents_1CHW = torch.empty(1, 4, size.height // LATENT_SIDE_PX, size.width // LATENT_SIDE_PX)
        with FlopCounterMode(display=False) as counter:
            vae.decode(latents_1CHW)
    return int(counter.get_total_flops())


def flops_per_s(device: str, threads: int) -> float:
    """Return the rate of the device's data sheet, as dense half precision, or of its matrix products where there is
    none: of a CPU in single precision."""
    if device == "cuda":
        from giornata.pretrain.training.models import peak_flops_per_s

        if (rate := peak_flops_per_s(torch.device("cuda"))) is not None:
            return rate
    return device_rate(device, "bf16" if device == "cuda" else "no", threads)
