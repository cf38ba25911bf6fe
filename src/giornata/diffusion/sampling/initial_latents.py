"""The latents that a row begins with, for each mode, and the noise that goes into them.

Every number is drawn from the picture's own generator, `torch.Generator("cpu").manual_seed(seed)`, in the order in
which the pipeline of diffusers for the same mode draws it. So a picture can be repeated elsewhere.

Shapes: C = 4 latent channels; h, w of the latents; H, W of the picture.
"""

from typing import Any

import torch
from diffusers.utils.torch_utils import randn_tensor
from torch.nn import functional

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.sampling.row_schedule import RowSchedule
from giornata.diffusion.sampling.rows import Inpainting

MASKED_CHANNELS = 9
"""Input channels of a UNet that was made to inpaint: latents, mask, latents of the masked picture."""


def seeded(seed: int) -> torch.Generator:
    """Return the generator of the picture with this seed."""
    return torch.Generator("cpu").manual_seed(seed)


def noise_for(base: BaseModel, generator: torch.Generator, *, width: int, height: int) -> torch.Tensor:
    """Draw noise_1Chw for a picture of this size in pixels."""
    shape = (1, base.vae.config.latent_channels, height // _scale(base), width // _scale(base))
    return randn_tensor(shape, generator=generator, device=base.device, dtype=base.dtype)


@torch.no_grad()
def encoded(base: BaseModel, pixels_13HW: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return latents_1Chw of a picture in -1 … 1: a sample of the posterior."""
    vae = base.vae
    posterior = vae.encode(pixels_13HW.to(base.device, vae.dtype)).latent_dist
    return vae.config.scaling_factor * posterior.sample(generator).to(base.dtype)


def from_text(
    base: BaseModel, schedule: RowSchedule, generator: torch.Generator, *, width: int, height: int
) -> torch.Tensor:
    """Return the first latents of a picture that is made of text alone."""
    return schedule.begun(noise_for(base, generator, width=width, height=height))


def from_pixels(
    base: BaseModel, schedule: RowSchedule, generator: torch.Generator, pixels_13HW: torch.Tensor
) -> torch.Tensor:
    """Return the first latents of a picture that begins with another."""
    return from_latents(schedule, generator, encoded(base, pixels_13HW, generator))


def from_latents(schedule: RowSchedule, generator: torch.Generator, latents_1Chw: torch.Tensor) -> torch.Tensor:
    """Return the first latents of a picture that begins with the latents of another."""
    noise_1Chw = randn_tensor(
        latents_1Chw.shape, generator=generator, device=latents_1Chw.device, dtype=latents_1Chw.dtype
    )
    return schedule.noised(latents_1Chw, noise_1Chw)


def enlarged(base: BaseModel, latents_1Chw: torch.Tensor, *, width: int, height: int) -> torch.Tensor:
    """Return the latents at another size in pixels, for a second pass at high resolution; bilinear."""
    size = (height // _scale(base), width // _scale(base))
    return functional.interpolate(latents_1Chw.float(), size=size, mode="bilinear").to(latents_1Chw.dtype)


def inpainting(
    base: BaseModel,
    schedule: RowSchedule,
    generator: torch.Generator,
    pixels_13HW: torch.Tensor,
    mask_11HW: torch.Tensor,
    *,
    from_noise: bool,
) -> tuple[torch.Tensor, Inpainting]:
    """Return the first latents of a picture of which a mask spares a part, and what the loop needs of that part.

    `mask_11HW` is 0 or 1, and 1 is drawn anew. With `from_noise` (a strength of 1) nothing of the picture is left
    under the mask.
    """
    has_mask_channels = base.unet.config.in_channels == MASKED_CHANNELS
    image_1Chw = None
    if not has_mask_channels or not from_noise:
        # The layout in memory decides on how a CPU multiplies; diffusers' is this one here.
        image_1Chw = encoded(base, pixels_13HW, generator).contiguous()
    height, width = pixels_13HW.shape[-2:]
    noise_1Chw = noise_for(base, generator, width=width, height=height)
    latents_1Chw = schedule.begun(noise_1Chw) if from_noise else schedule.noised(_known(image_1Chw), noise_1Chw)
    masked_1Chw = encoded(base, pixels_13HW * (mask_11HW < 0.5), generator) if has_mask_channels else None
    if masked_1Chw is None:
        _skip_draw(base, noise_1Chw, generator)
    small_11hw = functional.interpolate(mask_11HW, size=noise_1Chw.shape[-2:]).to(base.device, base.dtype)
    kept = Inpainting(
        mask_11HW=small_11hw,
        noise_1CHW=noise_1Chw,
        image_latents_1CHW=None if has_mask_channels else image_1Chw,
        masked_latents_1CHW=masked_1Chw,
    )
    return latents_1Chw, kept


def _skip_draw(base: BaseModel, like_1Chw: torch.Tensor, generator: torch.Generator) -> None:
    """Draw what the pipeline of diffusers draws for the masked picture, which a UNet of 4 channels never sees."""
    randn_tensor(like_1Chw.shape, generator=generator, dtype=base.vae.dtype)


def _known(latents_1Chw: torch.Tensor | None) -> torch.Tensor:
    if latents_1Chw is None:
        raise ValueError("a picture that is not drawn from noise alone has latents")
    return latents_1Chw


def _scale(base: BaseModel) -> int:
    blocks: Any = base.vae.config.block_out_channels
    return 2 ** (len(blocks) - 1)
