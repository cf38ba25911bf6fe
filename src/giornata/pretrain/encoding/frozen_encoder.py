"""Frozen encoders at work: giornata.pretrain.encoding.encoder.Encoder for every architecture.

Shapes: B pictures of one size, C = 3 colours or 4 latent channels; H, W in pixels; h, w = H / 8, W / 8; N captions;
L = 77 tokens; D, P widths of the text.

On a CPU rows are encoded one at a time, so that the bits of one do not depend on its neighbours. On a GPU a batch
is encoded at once, and libraries choose their kernels by its size: rows of batches of unlike sizes agree only to
the precision of the weights (a few units in the last place of float16). With one size and one place they agree in all
bits. Bits differ between kinds of devices, library versions and, on a CPU, numbers of threads.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from giornata.diffusion.captions import encode
from giornata.diffusion.models import off_the_file
from giornata.diffusion.tensor_file import json_sha256
from giornata.diffusion.weights_digest import weights_digest
from giornata.pretrain.encoding.encoder import Posterior, Text
from giornata.pretrain.encoding.frozen import Frozen


class FrozenEncoder:
    """What was loaded, on one device, in eval mode, without gradients."""

    def __init__(self, frozen: Frozen, *, device: torch.device) -> None:
        self._device, self._family = device, frozen.family
        self._tokenizers, self._text_encoders = frozen.tokenizers, tuple(map(self._placed, frozen.text_encoders))
        self._vae = None if frozen.vae is None else self._placed(frozen.vae)
        if self._vae is not None and device.type == "cuda":
            self._vae.to(memory_format=torch.channels_last)
        self._digest: str | None = None

    def _placed(self, module: Any) -> Any:
        placed = module.requires_grad_(False).eval().to(self._device)
        off_the_file(placed)
        return placed

    @property
    def digest(self) -> str:
        """sha256 over weights and configurations of the halves that were opened, in the precision they work in."""
        if self._digest is None:
            parts = {} if self._vae is None else {"vae": weights_digest(self._vae)}
            for each, module in zip(self._family.text_encoders, self._text_encoders, strict=False):
                parts[each.folder] = weights_digest(module)
            self._digest = json_sha256(parts)
        return self._digest

    @property
    def scaling(self) -> tuple[float, float]:
        """(shift, factor), from the VAE's configuration."""
        config = self._images().config
        return float(config.get("shift_factor") or 0.0), float(config.scaling_factor)

    @torch.no_grad()
    def encode_images(self, pixels_BHWC: np.ndarray) -> Posterior:
        """As the protocol says. uint8 travels to the device, and becomes -1 … 1 there."""
        vae = self._images()
        pixels_BCHW = (
            torch.from_numpy(np.require(pixels_BHWC, requirements=("C", "W"))).to(self._device).permute(0, 3, 1, 2)
        )
        means, logvars = [], []
        for part_BCHW in pixels_BCHW.split(self._at_once(len(pixels_BCHW))):
            # as giornata.diffusion.pixels.to_model_range
            scaled_BCHW = part_BCHW.to(torch.float32).div(127.5).sub(1.0).to(vae.dtype)
            layout = torch.channels_last if self._device.type == "cuda" else torch.contiguous_format
            posterior = vae.encode(scaled_BCHW.contiguous(memory_format=layout)).latent_dist
            means.append(posterior.mean)
            logvars.append(posterior.logvar)
        return Posterior(mean_BChw=_half(means), logvar_BChw=_half(logvars))

    @torch.no_grad()
    def encode_text(self, captions: Sequence[str]) -> Text:
        """As the protocol says."""
        if not self._text_encoders:
            raise RuntimeError("this encoder was opened without its text half")
        prompts, pooled = [], []
        at_once = self._at_once(len(captions))
        for first in range(0, len(captions), at_once):
            few = captions[first : first + at_once]
            embedding = encode(self._tokenizers, self._text_encoders, few, family=self._family, truncation=True)
            prompts.append(embedding.prompt_BLD)
            if embedding.pooled_BP is not None:
                pooled.append(embedding.pooled_BP)
        return Text(prompt_NLD=_half(prompts), pooled_NP=_half(pooled) if pooled else None)

    def _images(self) -> Any:
        if self._vae is None:
            raise RuntimeError("this encoder was opened without its image half")
        return self._vae

    def _at_once(self, count: int) -> int:
        return 1 if self._device.type == "cpu" else max(count, 1)


def _half(parts: Sequence[torch.Tensor]) -> np.ndarray:
    whole: np.ndarray = torch.cat(list(parts)).to(torch.float16).cpu().contiguous().numpy()
    return whole
