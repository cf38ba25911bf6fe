"""The UNet of each architecture before it has learned anything, its noise schedule, and what a picture costs it.

Shapes: B pictures; C = 4, H, W = pixels / 8; L = 77 tokens; D the width of the text, P of the pooled text.
"""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from torch.utils.flop_counter import FlopCounterMode

from giornata.diffusion.base.unet_layers import matmul_flops_per_s
from giornata.diffusion.draws import randomness
from giornata.diffusion.families import LAYOUTS
from giornata.diffusion.optim.objective import Objective, answer
from giornata.diffusion.tiny.tiny_sizes import HIDDEN, SCHEDULE, unet_settings
from giornata.pretrain.feeding.examples import ExampleDraws, blank
from giornata.pretrain.planning.facts import gpu_known, load_facts
from giornata.protocol.pretraining import LATENT_SIDE_PX, Architecture, PretrainConfig

PURPOSE = "pretrain/weights"
SILENT = ("conv2.weight", "proj_out.weight", "conv_out.weight")
"""Weights that begin at 0, so that resnets and attention return their input and the answer is 0, as in Dhariwal &
Nichol (2021, arXiv 2105.05233) and the LDM code that Stable Diffusion was trained with."""

SD2_UNET = {"attention_head_dim": (5, 10, 20, 20), "cross_attention_dim": 1024, "use_linear_projection": True}
"""Where unet/config.json of stabilityai/stable-diffusion-2-base differs from that of 1.5: 865,910,724 parameters."""


@lru_cache(maxsize=3)
def _config(architecture: Architecture) -> Mapping[str, Any]:
    if architecture is Architecture.SHAPES:
        # Here: it brings all pipelines of diffusers along, and other architectures need none.
        from giornata.diffusion.shapes.model import new_unet as shapes_unet

        return dict(shapes_unet().config)
    if architecture is Architecture.SDXL_TINY:
        return unet_settings(HIDDEN)
    return {**json.loads((LAYOUTS / "sd15" / "unet" / "config.json").read_bytes()), **SD2_UNET}


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


def objective_of(config: PretrainConfig) -> Objective:
    """The objective of a run, in float32."""
    kind = config.model.prediction_type
    return Objective(scheduler=noise_scheduler(kind), prediction_type=kind, snr_gamma=config.train.snr_gamma)


def held_draws(config: PretrainConfig, scaling: tuple[float, float]) -> ExampleDraws:
    """The draws for rows of validation; `scaling` is the encoder's."""
    timesteps = noise_scheduler(config.model.prediction_type).config.num_train_timesteps
    return ExampleDraws(seed=config.seed, timesteps=timesteps, scaling=scaling, purpose="pretrain/validation")


def widths(unet: UNet2DConditionModel) -> tuple[int, int | None]:
    """(D, P): of the text that this UNet attends to, and of the pooled text; None where it takes none."""
    config = unet.config
    if config.addition_embed_type != "text_time":
        return config.cross_attention_dim, None
    pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
    return config.cross_attention_dim, pooled


def answer_to_zeros(unet: UNet2DConditionModel, *, rows: int, side: int, device: torch.device) -> torch.Tensor:
    """The answer, float32, to inputs of zeros, with SDXL's micro-conditioning where the UNet takes any."""
    zeros = blank(widths(unet), rows=rows, side=side).to(device, text_dtype=torch.float32)
    noisy = zeros.noisy
    return answer(unet, noisy.latents_BCHW, noisy.timesteps_B, noisy.time_ids_B6, zeros.embedding)


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
