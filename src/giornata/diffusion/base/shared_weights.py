"""One memory for the weights that several bases of a process have in common.

Each base keeps modules of its own: adapters, wrapped layers, tiling and modes of one are never another's. Only the
frozen parameters lie in one place, where names, type, shape, device and every value agree. So what the bases compute
is what they compute alone, to the bit.
"""

from collections.abc import Iterator

import torch
from torch import nn

from giornata.diffusion.base.models import BaseModel


class SharedWeights:
    """The bases of one process, by who holds them. Nothing may write into the parameters of a base that `shares`."""

    def __init__(self) -> None:
        self._bases: dict[str, BaseModel] = {}

    def join(self, holder: str, base: BaseModel) -> None:
        """Note that `holder` has this base now, instead of the one before, and let go of the memory of all its
        parameters that another base has as well."""
        self.leave(holder)
        for other in self._bases.values():
            theirs = dict(_parameters(other))
            for name, parameter in _parameters(base):
                if name in theirs and _equal(parameter, theirs[name]):
                    parameter.data = theirs[name].data
        self._bases[holder] = base

    def leave(self, holder: str) -> None:
        """Note that `holder` has no base any more."""
        self._bases.pop(holder, None)

    def shares(self, holder: str) -> bool:
        """Return True when parameters of the holder's base lie where those of another base do."""
        if holder not in self._bases:
            return False
        others = [base for name, base in self._bases.items() if name != holder]
        taken = {_place(parameter) for base in others for _, parameter in _parameters(base)}
        return any(_place(parameter) in taken for _, parameter in _parameters(self._bases[holder]))


def _parameters(base: BaseModel) -> Iterator[tuple[str, nn.Parameter]]:
    modules: dict[str, nn.Module] = {"unet": base.unet, "vae": base.vae}
    modules |= {f"text_encoders.{number}": encoder for number, encoder in enumerate(base.text_encoders)}
    for name, module in modules.items():
        for inner, parameter in module.named_parameters():
            yield f"{name}.{inner}", parameter


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.shape, one.dtype, one.device, one.stride()) != (other.shape, other.dtype, other.device, other.stride()):
        return False
    return one.data_ptr() == other.data_ptr() or torch.equal(one, other)


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
