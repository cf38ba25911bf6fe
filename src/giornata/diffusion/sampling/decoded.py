"""Pictures to tensors and back: input pictures and masks as the VAE reads them, and pixels as finished pictures.

Shapes: H, W of the picture.
"""

from typing import Any

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

LARGE_SIDE_PX = 1280
"""A picture with a longer side is decoded in tiles."""


def _processor(**settings: Any) -> VaeImageProcessor:
    return VaeImageProcessor(vae_scale_factor=8, **settings)


def pixels_of(image: Image.Image, *, width: int, height: int) -> torch.Tensor:
    """Return pixels_13HW in -1 … 1 of a picture, resized if it has another size."""
    return _processor().preprocess(image, height=height, width=width).to(torch.float32)


def mask_of(mask: Image.Image, *, width: int, height: int) -> torch.Tensor:
    """Return mask_11HW of 0 and 1; white is 1."""
    processor = _processor(do_normalize=False, do_binarize=True, do_convert_grayscale=True)
    return processor.preprocess(mask, height=height, width=width)


def control_of(image: Image.Image, *, width: int, height: int) -> torch.Tensor:
    """Return pixels_13HW in 0 … 1 of a control picture."""
    processor = _processor(do_convert_rgb=True, do_normalize=False)
    return processor.preprocess(image, height=height, width=width).to(torch.float32).contiguous()


def let_large_be_tiled(vae: Any, *, side_px: int = LARGE_SIDE_PX) -> None:
    """Make the VAE work in tiles on pictures that have a side of more than `side_px` pixels."""
    vae.enable_tiling()
    vae.tile_sample_min_size = side_px
    vae.tile_latent_min_size = side_px // 2 ** (len(vae.config.block_out_channels) - 1)


def image_of(pixels_13HW: torch.Tensor) -> Image.Image:
    """Return the picture of 8 bits of pixels in -1 … 1."""
    images: list[Image.Image] = _processor().postprocess(pixels_13HW.float(), output_type="pil")
    return images[0]


def spared(drawn: Image.Image, original: Image.Image, mask_11HW: torch.Tensor) -> Image.Image:
    """Return the picture with the original's own bytes wherever the mask spares them."""
    fitted = original if original.size == drawn.size else _processor().resize(original, drawn.height, drawn.width)
    anew_HW1 = mask_11HW[0, 0].numpy()[:, :, None] >= 0.5
    return Image.fromarray(np.where(anew_HW1, np.asarray(drawn), np.asarray(fitted.convert("RGB"))))
