"""Decodes the pictures of one base: in half precision where the VAE may take it, and in its own precision otherwise.

A VAE whose config says whether it overflows in half precision is loaded accordingly. Of others nothing is known: a
file has no config, and SD 1.5's has no word of it. Their decoder has a copy in half precision (`BaseModel.half_vae`).
A picture that it decodes to values that are not finite is decoded again by the VAE itself. What was decoded before
decides on nothing, so equal latents are equal bytes.

Shapes: C, h, w of the latents; H, W of the picture.
"""

import copy
from typing import Any

import torch
from PIL import Image
from torch import nn

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.sampling.decoded import image_of


class PictureDecoder:
    """Decodes latents to pictures. The copy of the decoder is made by the first picture that needs it; it has the
    tiles that the VAE has then."""

    def __init__(self, base: BaseModel) -> None:
        self._base = base
        self._dtype = base.vae.dtype  # diffusers looks at all modules of the VAE to tell it
        self._tries_half = base.half_vae and self._dtype != base.dtype
        self._half: Any = None

    @torch.no_grad()
    def picture(self, latents_1Chw: torch.Tensor) -> Image.Image:
        """Decode latents to a picture of 8 bits."""
        vae = self._base.vae
        if self._tries_half:
            self._half = self._half or _decoder_in(vae, self._base.dtype)
            pixels_13HW = _decoded(self._half, latents_1Chw.to(self._base.dtype), vae.config)
            if bool(torch.isfinite(pixels_13HW).all()):
                return image_of(pixels_13HW)
        return image_of(_decoded(vae, latents_1Chw.to(self._dtype), vae.config))


def _decoded(vae: Any, latents_1Chw: torch.Tensor, config: Any) -> torch.Tensor:
    pixels_13HW: torch.Tensor = vae.decode(latents_1Chw / config.scaling_factor, return_dict=False)[0]
    return pixels_13HW


def _decoder_in(vae: Any, dtype: torch.dtype) -> Any:
    """Return a VAE whose decoding half is a copy in another precision. Its other half is the VAE's own."""
    there: dict[int, Any] = {id(each): each for each in (vae.encoder, vae.quant_conv)}
    for module in (vae.decoder, vae.post_quant_conv):
        for each in module.parameters():
            there[id(each)] = nn.Parameter(each.detach().to(dtype), requires_grad=False)
        there |= {id(each): each.to(dtype) for each in module.buffers()}
    return copy.deepcopy(vae, there)
