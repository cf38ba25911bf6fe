"""Another checkpoint of the same family in the modules of the one that is loaded.

The UNet's module stays, with all that hangs on it: adapters, compiled kernels, memory of the device. Its weights are
written over. Text encoders and VAE stay likewise where their settings agree; otherwise copies of the new ones take
their place. The checkpoint that is copied stays as it is, and may be used again.
"""

import copy
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.weights_digest import configuration, forget_digest


def can_swap(warm: BaseModel, other: BaseModel) -> bool:
    """Return True when the UNets of both compute the same with the same weights."""
    same_place = warm.dtype == other.dtype and warm.family is other.family
    return same_place and _alike(warm.unet, other.unet)


M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def swap_base(warm: BaseModel, other: BaseModel) -> BaseModel:
    """Copy the weights of `other`, which may lie on the CPU, into the modules of `warm`. Return a base of `other`'s
    settings with these modules. `warm` is of no use afterwards, nor is what was encoded with it.

    Raises ValueError, and changes nothing, unless `can_swap`.
    """
    if not can_swap(warm, other):
        raise ValueError("the UNets differ in more than their weights")
    encoders = zip(warm.text_encoders, other.text_encoders, strict=True)
    return replace(
        other,
        unet=_written(warm.unet, other.unet),
        vae=_kept_or_new(warm.vae, other.vae, warm.device),
        text_encoders=tuple(_kept_or_new(old, new, warm.device) for old, new in encoders),
        device=warm.device,
    )


def copied_base(base: BaseModel, device: torch.device) -> BaseModel:
    """Return a copy of the base on the device, with modules and weights of its own. Weights are copied once."""
    return replace(
        base,
        unet=_copied(base.unet, device),
        vae=_copied(base.vae, device),
        text_encoders=tuple(_copied(each, device) for each in base.text_encoders),
        device=device,
    )


def size_bytes_of(base: BaseModel) -> int:
    """Return the bytes of all weights and buffers of the base."""
    modules: tuple[nn.Module, ...] = (base.unet, base.vae, *base.text_encoders)
    return sum(each.numel() * each.element_size() for module in modules for each in _tensors(module).values())


def _alike(one: nn.Module, other: nn.Module) -> bool:
    return configuration(one) == configuration(other) and _shapes(one) == _shapes(other)


def _shapes(module: nn.Module) -> dict[str, tuple[object, ...]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in _tensors(module).items()}


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and all buffers, those too that files leave out."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _kept_or_new(old: M, new: M, device: torch.device) -> M:
    return _written(old, new) if _alike(old, new) else _copied(new, device)


def _copied(module: M, device: torch.device) -> M:
    # deepcopy takes what `there` has for a tensor: no second copy of the weights is made beside the module.
    there: dict[int, object] = {id(each): each.to(device, copy=True) for each in module.buffers()}
    for each in module.parameters():
        there[id(each)] = nn.Parameter(each.detach().to(device, copy=True), requires_grad=each.requires_grad)
    return copy.deepcopy(module, there)


def _written(old: M, new: M) -> M:
    values = _tensors(new)
    for name, tensor in _tensors(old).items():
        tensor.copy_(values[name])
    forget_digest(old)
    return old
