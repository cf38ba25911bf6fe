"""Which encoder there is, and on which device. diffusers is imported with the first: who only says where encoders
run, as Ray Train's controller does, starts seconds sooner without it.
"""

import os

import torch

from giornata.diffusion.determinism import let_libraries_repeat
from giornata.pretrain.encoding.encoder import Encoder
from giornata.protocol.pretraining import Model, PretrainConfig


def encoder_dtype(device: torch.device | str) -> torch.dtype:
    """In which precision encoders work: half on a GPU, where it is several times as quick, single on a CPU."""
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
    """The encoder of `model` on `device`. Without `images` or `text` that half is not loaded. `seed` only makes
    random weights. Raises InvalidInput with all that is wrong with the model's folder, Unavailable when a hub cannot
    be reached."""
    from giornata.pretrain.encoding.frozen import load_frozen
    from giornata.pretrain.encoding.frozen_encoder import FrozenEncoder

    let_libraries_repeat(os.environ)
    frozen = load_frozen(model, seed=seed, dtype=dtype or encoder_dtype(device), images=images, text=text)
    return FrozenEncoder(frozen, device=torch.device(device))


def gpus_of_an_encoder(config: PretrainConfig) -> float:
    """GPUs that each encoder reserves."""
    if config.encode.gpus_per_encoder is not None:
        return config.encode.gpus_per_encoder
    return 1.0 if config.workers.use_gpu or config.encode.accelerator_type else 0.0


def device_of_an_encoder(config: PretrainConfig) -> str:
    """Ray shows an actor the GPUs that it reserved, and no others."""
    return "cuda" if gpus_of_an_encoder(config) else "cpu"
