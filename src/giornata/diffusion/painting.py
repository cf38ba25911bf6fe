"""One picture from the modules that training has in memory; nothing is loaded, and nothing about them is changed.

Shapes: B = 1 picture; C, H, W of the latents, or of the picture (C = 3) where it says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import EulerDiscreteScheduler

from giornata.diffusion import randomness
from giornata.diffusion.captions import Embedding, encode
from giornata.diffusion.models import BaseModel
from giornata.domain.caption_length import CHUNK


def _nothing() -> None:
    """Whoever draws has nothing else to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brush:
    """How a picture is drawn: `side_px` pixels square, in `steps` denoising steps of Euler's method.

    `scheduler` holds settings that are other than the base's, such as `prediction_type`. `between` is called before
    each denoising step and may raise to stop. With `mixed` the UNet and the text encoders run in bf16 as they do in
    training. A prompt is cut after `max_token_length` tokens.
    """

    side_px: int
    steps: int
    guidance_scale: float
    scheduler: dict[str, Any] | None = None
    mixed: bool = False
    between: Callable[[], None] = _nothing
    max_token_length: int = CHUNK


@torch.no_grad()
def paint(base: BaseModel, prompt: str, noise_BCHW: torch.Tensor, brush: Brush) -> torch.Tensor:
    """pixels_HWC, uint8, on the CPU. `noise_BCHW` is standard normal; see `initial_noise`."""
    pipeline = base.family.assemble(
        unet=base.unet,
        vae=base.vae,
        text_encoders=base.text_encoders,
        tokenizers=base.tokenizers,
        scheduler=EulerDiscreteScheduler.from_config(base.noise_scheduler.config, **(brush.scheduler or {})),
    )
    pipeline.set_progress_bar_config(disable=True)

    def go_on(_pipeline: Any, _step: int, _timestep: Any, _tensors: dict[str, Any]) -> dict[str, Any]:
        brush.between()
        return {}

    brush.between()
    with torch.autocast(base.device.type, dtype=torch.bfloat16, enabled=brush.mixed):
        latents_BCHW = pipeline(
            **_said(base, pipeline, prompt, brush),
            latents=noise_BCHW.to(device=base.device, dtype=base.dtype),
            height=brush.side_px,
            width=brush.side_px,
            num_inference_steps=brush.steps,
            guidance_scale=brush.guidance_scale,
            output_type="latent",
            callback_on_step_end=go_on,
        ).images
    # Decoded here: the pipeline would change the precision of a VAE that is shared with the training.
    scaled_BCHW = latents_BCHW.to(base.vae.dtype) / base.vae.config.scaling_factor
    pixels_CHW = base.vae.decode(scaled_BCHW, return_dict=False)[0][0].float()
    levels_CHW = pixels_CHW.add(1.0).mul(127.5).round().clamp(0.0, 255.0)
    return levels_CHW.permute(1, 2, 0).to(device="cpu", dtype=torch.uint8).contiguous()


def _said(base: BaseModel, pipeline: Any, prompt: str, brush: Brush) -> dict[str, Any]:
    """The prompt as the pipeline takes it: the text itself, or embeddings where it would cut too early."""
    if brush.max_token_length == CHUNK:
        return {"prompt": prompt}

    def heard(text: str) -> Embedding:
        return encode(
            base.tokenizers,
            base.text_encoders,
            [text],
            family=base.family,
            max_token_length=brush.max_token_length,
            truncation=True,
        )

    positive = heard(prompt)
    said = {"prompt_embeds": positive.prompt_BLD.to(base.dtype), "pooled_prompt_embeds": positive.pooled_BP}
    if not pipeline.config.get("force_zeros_for_empty_prompt", False):
        negative = heard("")
        said |= {"negative_prompt_embeds": negative.prompt_BLD.to(base.dtype)}
        said |= {"negative_pooled_prompt_embeds": negative.pooled_BP}
    return {name: tensor for name, tensor in said.items() if tensor is not None}


def initial_noise(base: BaseModel, seed: int, purpose: str, *counters: int, side_px: int) -> torch.Tensor:
    """noise_BCHW of a picture of `side_px`, a function of (seed, purpose, counters); float32 on the CPU."""
    side = side_px // 2 ** (len(base.vae.config.block_out_channels) - 1)
    return randomness.normal(seed, purpose, *counters, shape=(1, base.unet.config.in_channels, side, side))
