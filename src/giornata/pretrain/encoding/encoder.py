"""What encoders have to offer, whatever the model: pictures to posteriors, captions to what the UNet attends to.

Shapes: B pictures of one size, H, W in pixels; h, w = H / 8, W / 8; N captions; L tokens; D, P widths of the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Of the VAE, before any scaling: float16 arrays, B4hw each."""

    mean_BChw: np.ndarray
    logvar_BChw: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """float16: prompt_NLD, and pooled_NP where the model has it."""

    prompt_NLD: np.ndarray
    pooled_NP: np.ndarray | None


class Encoder(Protocol):
    """Frozen VAE and text encoders on one device. Either half may be left out when it is opened; asking for what was
    left out raises RuntimeError."""

    @property
    def digest(self) -> str:
        """sha256 over the frozen weights: encoded rows of another digest are another model's."""
        ...

    @property
    def scaling(self) -> tuple[float, float]:
        """(shift, factor): the UNet's latents are (latents - shift) · factor."""
        ...

    def encode_images(self, pixels_BHWC: np.ndarray) -> Posterior:
        """Of uint8 pixels; they are normalised here, on the device."""
        ...

    def encode_text(self, captions: Sequence[str]) -> Text:
        """A caption that is too long is cut, as every pre-training does."""
        ...
