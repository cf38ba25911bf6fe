"""The arrays that frozen encoders return.

Shapes: B views, h and w latent height and width; N captions, L tokens, D and P widths of the embeddings.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The VAE's posterior before any scaling: float16 arrays, B4hw each."""

    mean_BChw: np.ndarray
    logvar_BChw: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Embeddings in float16: prompt_NLD, and pooled_NP where the model has it."""

    prompt_NLD: np.ndarray
    pooled_NP: np.ndarray | None
