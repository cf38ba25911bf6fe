"""Digests of frozen modules, from their content rather than from the name under which they were found."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import torch
from torch import nn

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.tensor_file import json_sha256

HASHING_THREADS = 4  # hashlib lets others run meanwhile
# Weights that are frozen do not change while they live; hashing all of SDXL takes some seconds.
_known: "WeakKeyDictionary[nn.Module, str]" = WeakKeyDictionary()


def weights_digest(module: nn.Module) -> str:
    """Return the sha256 over the module's configuration and its tensors: over all that decides what it computes."""
    return hashlib.sha256(f"{configuration(module)} {tensors_digest(module)}".encode()).hexdigest()


def tensors_digest(module: nn.Module) -> str:
    """Return the sha256 over names, types, shapes and bytes of the module's tensors. Only for what stays as it is:
    each module is looked at once. Tensors that are not on the CPU are copied one by one."""
    if module not in _known:
        tensors = module.state_dict()
        with ThreadPoolExecutor(HASHING_THREADS) as pool:
            rows = sorted(pool.map(described, tensors.keys(), tensors.values()))
        _known[module] = json_sha256(rows)
    return _known[module]


def forget_digest(module: nn.Module) -> None:
    """Forget the digest of a module whose weights were written over."""
    _known.pop(module, None)


def described(name: str, tensor: torch.Tensor) -> list[str]:
    """Return name, type, shape, and sha256 of the bytes of a tensor."""
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return [name, str(tensor.dtype), str(tuple(tensor.shape)), hashlib.sha256(memoryview(flat.numpy())).hexdigest()]


def configuration(module: nn.Module) -> str:
    """Return the settings that decide what the weights compute. Notes on the weights' origin are left out, because
    they differ by node."""
    config = getattr(module, "config", {})
    fields = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    return json.dumps({key: fields[key] for key in sorted(fields) if not key.startswith("_")}, default=str)


def base_sha256(base: BaseModel) -> str:
    """Hash of every weight and buffer of UNet, VAE and text encoders by its name, and of the noise schedule.

    The base carries no adapter yet, and its weights are as they were loaded, in the precision of the job: of what a
    result depends on. Folder, single file and hub give one hash.
    """
    modules = {"unet": base.unet, "vae": base.vae}
    modules |= {f"text_encoders.{number}": encoder for number, encoder in enumerate(base.text_encoders)}
    parts = [[name, tensors_digest(module)] for name, module in modules.items()]
    parts.append(described("noise_scheduler.alphas_cumprod", base.noise_scheduler.alphas_cumprod))
    parts.append(["prediction_type", base.prediction_type])
    return json_sha256(parts)
