"""The safety checker: says which drawn pictures it takes for unsafe. It runs after every family's pictures.

Shapes: H, W of a picture; 3 channels, red, green, blue, uint8.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from PIL import Image
from transformers import CLIPImageProcessorPil


class SafetyChecker:
    """The checker of Stable Diffusion: compares a picture's CLIP embedding with those of 17 unsafe and 3 special
    concepts (J. Rando et al., "Red-Teaming the Stable Diffusion Safety Filter", 2022, describe it).

    `model` is a folder or a hub id. Raises OSError when it has no safetensors file: nothing is unpickled.
    """

    def __init__(self, model: str | Path, *, device: torch.device | str) -> None:
        checker = StableDiffusionSafetyChecker.from_pretrained(model, use_safetensors=True)
        self._checker = checker.requires_grad_(False).eval().to(device)
        self._processor = CLIPImageProcessorPil.from_pretrained(model)
        self._device = torch.device(device)

    @torch.no_grad()
    def unsafe(self, pictures: Sequence[np.ndarray]) -> list[bool]:
        """Return True for each pixels_HW3 that the checker takes for unsafe. The pictures are left as they are."""
        if not pictures:
            return []
        images = [Image.fromarray(pixels_HW3) for pixels_HW3 in pictures]
        inputs = self._processor(images, return_tensors="pt").to(self._device)
        # It blackens what it finds in the list that it is given.
        _, found = self._checker(images=[np.zeros(1) for _ in pictures], clip_input=inputs.pixel_values)
        return [bool(each) for each in found]
