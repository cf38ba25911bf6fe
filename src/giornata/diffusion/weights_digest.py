"""What a frozen module is, by its content rather than by the name under which it was found."""

import hashlib
import json
from weakref import WeakKeyDictionary

import torch
from torch import nn

# Weights that are frozen do not change while they live; hashing SDXL's text encoders takes a second or two.
_known: "WeakKeyDictionary[nn.Module, str]" = WeakKeyDictionary()


def weights_digest(module: nn.Module) -> str:
    """sha256 over the module's configuration, and over names, types and bytes of its tensors. Only for what stays as
    it is: each module is looked at once."""
    if module not in _known:
        _known[module] = _digest(module)
    return _known[module]


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256(_configuration(module).encode("utf-8"))
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _configuration(module: nn.Module) -> str:
    """What else decides what the weights compute; without notes on where they came from, which differ by node."""
    config = getattr(module, "config", {})
    fields = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    return json.dumps({key: fields[key] for key in sorted(fields) if not key.startswith("_")}, default=str)
