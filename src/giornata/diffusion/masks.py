"""Masks of pictures: what of them is to be learnt.

Shapes: H, W of the latents. A mask is a picture's alpha channel: 255 is learnt, 0 is not, and what lies between
counts in proportion.
"""

import numpy as np
import torch
from PIL import Image, ImageOps

from giornata.diffusion.pixels import Placement, covering_size


def split(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """The colours, also of what is transparent, and the alpha channel if there is one."""
    if image.mode != "RGBA":
        return image, None
    return image.convert("RGB"), image.getchannel("A")


def latent_mask(alpha: Image.Image, placement: Placement, *, scale: int) -> torch.Tensor:
    """mask_HW in 0 … 1, float32, of what the placement cuts out; `scale` pixels are one latent.

    Resized by area to the size that the picture was resized to, mirrored and cropped as it, and averaged over each
    square of scale x scale pixels.
    """
    size = covering_size(alpha.size, placement.target_size)
    resized = alpha if size == alpha.size else alpha.resize(size, Image.Resampling.BOX)
    image = ImageOps.mirror(resized) if placement.flip else resized
    (top, left), (height, width) = placement.crop_top_left, placement.target_size
    levels = np.asarray(image.crop((left, top, left + width, top + height)), dtype=np.float32) / np.float32(255.0)
    blocks = levels.reshape(height // scale, scale, width // scale, scale)
    return torch.from_numpy(blocks.mean(axis=(1, 3), dtype=np.float32))
