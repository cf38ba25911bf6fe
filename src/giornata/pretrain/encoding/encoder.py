"""The interface of encoders, whatever the model: pictures to posteriors, captions to the embeddings for the UNet.

Shapes: B pictures of one size, H, W in pixels; h, w = H / 8, W / 8; N captions; L tokens; D, P widths of the text.
"""

import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from giornata.diffusion.draws.determinism import let_libraries_repeat
from giornata.diffusion.encode.captions import Embedding
from giornata.pretrain.encoding.transforms import Posterior
from giornata.protocol.pretraining import Model, PretrainConfig


class Encoder(Protocol):
    """Frozen VAE and text encoders on one device. Calls of a half that was not loaded raise RuntimeError."""

    @property
    def digest(self) -> str:
        """sha256 over the frozen weights: rows of another digest are another model's."""
        ...

    @property
    def scaling(self) -> tuple[float, float]:
        """(shift, factor): the UNet's latents are (latents - shift) · factor."""
        ...

    def encode_images(self, pixels_BHWC: np.ndarray) -> Posterior:
        """The posterior of uint8 pixels, which are normalized here, on the device."""
        ...

    def encode_text(self, captions: Sequence[str]) -> Embedding:
        """The float16 embeddings of captions, on the CPU. Too long a caption is cut, as in every pre-training."""
        ...


def encoder_dtype(device: torch.device | str) -> torch.dtype:
    """The precision of encoders: half on a GPU, where it is several times as fast, single on a CPU."""
    return torch.float16 if torch.device(device).type == "cuda" else torch.float32


def open_encoder(
    model: Model,
    *,
    seed: int,
    device: torch.device | str,
    dtype: torch.dtype | None = None,
    images: bool = True,
    text: bool = True,
) -> Encoder:
    """The encoder of `model` on `device`. Without `images` or `text` that half is not loaded.

    `seed` makes random weights. Raises InvalidInput with all faults of the model's folder, Unavailable when a hub
    cannot be reached.
    """
    # diffusers takes seconds to import: Ray Train's controller, for one, never opens an encoder
    from giornata.pretrain.encoding.frozen_encoder import load_frozen

    let_libraries_repeat(os.environ)
    dtype = dtype or encoder_dtype(device)
    return load_frozen(model, seed=seed, dtype=dtype, device=device, images=images, text=text)


def gpus_of_an_encoder(config: PretrainConfig) -> float:
    if config.encode.gpus_per_encoder is not None:
        return config.encode.gpus_per_encoder
    return 1.0 if config.workers.use_gpu or config.encode.accelerator_type else 0.0


def device_of_an_encoder(config: PretrainConfig) -> str:
    """The device of an encoder. Ray shows an actor only the GPUs that the actor reserved."""
    return "cuda" if gpus_of_an_encoder(config) else "cpu"
