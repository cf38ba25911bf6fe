"""What a base model is, whatever it is called: a hub's branch moves on, and a folder can be overwritten.

The digest is of the weights as they were loaded, in the precision of the job: of what a result depends on. So it does
not matter whether they came from a folder, from a single file, or from the hub.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from giornata.diffusion.checkpoint import canonical_json
from giornata.diffusion.models import BaseModel

HASHING_THREADS = 4  # hashlib lets others run meanwhile


def base_sha256(base: BaseModel) -> str:
    """Hash of every weight and buffer of UNet, VAE and text encoders by its name, and of the noise schedule.

    Taken of the base as it is when no adapter is on it. Weights that are not on the CPU are copied one by one.
    """
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        parts = sorted(pool.map(_described, *zip(*_tensors(base), strict=True)))
    alphas = base.noise_scheduler.alphas_cumprod
    parts.append(["noise_scheduler.alphas_cumprod", *_described("", alphas)[1:]])
    parts.append(["prediction_type", base.prediction_type])
    return hashlib.sha256(canonical_json(parts).encode("ascii")).hexdigest()


def _tensors(base: BaseModel) -> Iterator[tuple[str, torch.Tensor]]:
    modules = {"unet": base.unet, "vae": base.vae}
    modules |= {f"text_encoders.{number}": encoder for number, encoder in enumerate(base.text_encoders)}
    for prefix, module in modules.items():
        for name, tensor in module.state_dict().items():
            yield f"{prefix}.{name}", tensor


def _described(name: str, tensor: torch.Tensor) -> list[str]:
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return [name, str(tensor.dtype), str(tuple(tensor.shape)), hashlib.sha256(memoryview(flat.numpy())).hexdigest()]
