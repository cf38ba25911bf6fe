"""What a frozen module is, by its content rather than by the name under which it was found."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import torch
from torch import nn

from giornata.diffusion.checkpoint import canonical_json

HASHING_THREADS = 4  # hashlib lets others run meanwhile
# Weights that are frozen do not change while they live; hashing all of SDXL takes some seconds.
_known: "WeakKeyDictionary[nn.Module, str]" = WeakKeyDictionary()


def weights_digest(module: nn.Module) -> str:
    """sha256 over the module's configuration and its tensors: over all that decides what it computes."""
    return hashlib.sha256(f"{_configuration(module)} {tensors_digest(module)}".encode()).hexdigest()


def tensors_digest(module: nn.Module) -> str:
    """sha256 over names, types, shapes and bytes of the module's tensors. Only for what stays as it is: each module
    is looked at once. Tensors that are not on the CPU are copied one by one."""
    if module not in _known:
        tensors = module.state_dict()
        with ThreadPoolExecutor(HASHING_THREADS) as pool:
            rows = sorted(pool.map(described, tensors.keys(), tensors.values()))
        _known[module] = hashlib.sha256(canonical_json(rows).encode("ascii")).hexdigest()
    return _known[module]


def described(name: str, tensor: torch.Tensor) -> list[str]:
    """Name, type, shape, and sha256 of the bytes."""
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return [name, str(tensor.dtype), str(tuple(tensor.shape)), hashlib.sha256(memoryview(flat.numpy())).hexdigest()]


def _configuration(module: nn.Module) -> str:
    """What else decides what the weights compute; without notes on where they came from, which differ by node."""
    config = getattr(module, "config", {})
    fields = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    return json.dumps({key: fields[key] for key in sorted(fields) if not key.startswith("_")}, default=str)
