"""The UNet of each architecture before it has learned anything, its noise schedule, and what a picture costs it.

Shapes: B pictures; C = 4, H, W = pixels / 8; L = 77 tokens; D the width of the text, P of the pooled text.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from torch.utils.flop_counter import FlopCounterMode

from giornata.diffusion.base.unet_layers import matmul_flops_per_s
from giornata.diffusion.draws import randomness
from giornata.diffusion.shapes.model import new_unet as shapes_unet
from giornata.diffusion.tiny.tiny_model import HIDDEN, SCHEDULE, UNET_SHAPE
from giornata.pretrain.feeding.feed import TOKENS
from giornata.pretrain.planning.facts import gpu_known, load_facts
from giornata.protocol.pretraining import LATENT_SIDE_PX, Architecture

PURPOSE = "pretrain/weights"
SILENT = ("conv2.weight", "proj_out.weight", "conv_out.weight")
"""These begin at 0, so that resnets and attention return their input and the answer is 0, as in Dhariwal & Nichol
(2021, arXiv 2105.05233) and the LDM code that Stable Diffusion was trained with."""

SD2_UNET: Mapping[str, Any] = MappingProxyType(
    {
        "sample_size": 64,
        "in_channels": 4,
        "out_channels": 4,
        "block_out_channels": (320, 640, 1280, 1280),
        "layers_per_block": 2,
        "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
        "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
        "attention_head_dim": (5, 10, 20, 20),
        "cross_attention_dim": 1024,
        "use_linear_projection": True,
    }
)
"""unet/config.json of stabilityai/stable-diffusion-2-base: 865,910,724 parameters."""
TINY_UNET: Mapping[str, Any] = MappingProxyType(
    {
        **UNET_SHAPE,
        "transformer_layers_per_block": (1, 2),
        "attention_head_dim": (2, 4),
        "cross_attention_dim": 2 * HIDDEN,
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + HIDDEN,
    }
)
"""Of giornata.diffusion.tiny.tiny_model."""


@lru_cache(maxsize=3)
def _config(architecture: Architecture) -> Mapping[str, Any]:
    if architecture is Architecture.SHAPES:
        return dict(shapes_unet().config)
    return SD2_UNET if architecture is Architecture.SD2 else TINY_UNET


def unet_on_meta(architecture: Architecture) -> UNet2DConditionModel:
    """A UNet with shapes and without memory for weights."""
    with torch.device("meta"):
        return UNet2DConditionModel.from_config(dict(_config(architecture)))


def new_unet(architecture: Architecture, seed: int) -> UNet2DConditionModel:
    """Fresh weights, float32 on the CPU: each a function of the seed and its name, whatever the order of drawing.

    Matrices and kernels are normal with deviation 1 / sqrt(fan-in) (LeCun), norms 1, biases 0, SILENT ones 0.
    """
    unet = unet_on_meta(architecture).to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in unet.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            elif name.endswith(SILENT) and not name.startswith("conv_in"):
                parameter.zero_()
            else:
                drawn = randomness.normal(seed, PURPOSE, name, shape=tuple(parameter.shape))
                parameter.copy_(drawn.mul_(1.0 / math.sqrt(math.prod(parameter.shape[1:]))))
    return unet.train()


def noise_scheduler(prediction_type: str) -> DDPMScheduler:
    """Stable Diffusion's 1000 noise levels."""
    return DDPMScheduler(**SCHEDULE, prediction_type=prediction_type, clip_sample=False)


def widths(unet: UNet2DConditionModel) -> tuple[int, int | None]:
    """(D, P): of the text that this UNet attends to, and of the pooled text; None where it takes none."""
    config = unet.config
    if config.addition_embed_type != "text_time":
        return config.cross_attention_dim, None
    pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
    return config.cross_attention_dim, pooled


def answer_to_zeros(unet: UNet2DConditionModel, *, rows: int, side: int, device: torch.device) -> torch.Tensor:
    """The answer to inputs of zeros, with SDXL's micro-conditioning where the UNet takes any."""
    text, pooled = widths(unet)
    conditions = None
    if pooled is not None:
        conditions = {
            "time_ids": torch.zeros(rows, 6, device=device),
            "text_embeds": torch.zeros(rows, pooled, device=device),
        }
    answer_BCHW: torch.Tensor = unet(
        torch.zeros(rows, 4, side, side, device=device),
        torch.zeros(rows, dtype=torch.int64, device=device),
        torch.zeros(rows, TOKENS, text, device=device),
        added_cond_kwargs=conditions,
        return_dict=False,
    )[0]
    return answer_BCHW


@lru_cache(maxsize=16)
def flops_per_picture(architecture: Architecture, resolution: int) -> int:
    """FLOPs of one forward and backward pass: 2 per multiplication of each matrix product and convolution. They are
    counted on the model's operations without computing them."""
    return flops_of(unet_on_meta(architecture), resolution)


def flops_of(unet: UNet2DConditionModel, resolution: int) -> int:
    """FLOPs of one forward and backward pass of a UNet on the meta device."""
    meta, side = torch.device("meta"), resolution // LATENT_SIDE_PX
    with meta, FlopCounterMode(display=False) as counter:
        answer_to_zeros(unet, rows=1, side=side, device=meta).sum().backward()
    return counter.get_total_flops()


def peak_flops_per_s(device: torch.device) -> float | None:
    """The bf16 rate of the device's matrix units: of a data sheet, or measured. None for a CPU, whose rate depends on
    what else runs there."""
    if device.type != "cuda":
        return None
    return sheet_flops_per_s(torch.cuda.get_device_name(device)) or matmul_flops_per_s(device, torch.bfloat16)


def sheet_flops_per_s(name: str) -> float | None:
    """The rate of a data sheet, by CUDA's name of the device; None where no data sheet is known."""
    facts = load_facts()
    gpu = gpu_known(name, facts)
    return None if gpu is None else facts.gpu(gpu).peak_tflops * 1e12
