"""Gradient checkpointing of the UNet: activations are computed again in the backward pass instead of being kept.

SDXL's lowest resolution holds most of the arithmetic and little of the memory per operation; its highest holds large
activations that are cheap to compute again. "selective" therefore leaves the lowest resolution (the last down block,
the middle, the first up block) alone, and "full" computes everything again. No bit of a gradient depends on it: the
same operations run twice on the same numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from diffusers import UNet2DConditionModel
from torch import nn
from torch.utils.checkpoint import checkpoint


class Recompute(StrEnum):
    """The part of the UNet that is computed twice."""

    OFF = "off"
    SELECTIVE = "selective"
    FULL = "full"

    @classmethod
    def of(cls, wanted: bool | str) -> "Recompute":
        """Return the kind that the spec's `gradient_checkpointing` names."""
        if isinstance(wanted, str):
            return cls(wanted)
        return cls.FULL if wanted else cls.OFF


def set_recompute(unet: UNet2DConditionModel, wanted: Recompute) -> None:
    """Switch gradient checkpointing of the UNet, also between two steps."""
    if wanted is Recompute.OFF:
        unet.disable_gradient_checkpointing()
        return
    unet.enable_gradient_checkpointing(_again)
    if wanted is Recompute.SELECTIVE:
        for block in lowest_blocks(unet):
            for module in block.modules():
                if hasattr(module, "gradient_checkpointing"):
                    module.gradient_checkpointing = False


def _again(module: nn.Module, *inputs: Any) -> Any:
    """Checkpoint a module as diffusers does, but do not save the state of torch's random numbers, which no layer
    draws from. Reading that state is refused while a CUDA graph is captured."""
    return checkpoint(module.__call__, *inputs, use_reentrant=False, preserve_rng_state=False)


def lowest_blocks(unet: UNet2DConditionModel) -> tuple[nn.Module, ...]:
    """Return the blocks that work at the lowest resolution."""
    middle = () if unet.mid_block is None else (unet.mid_block,)
    return (unet.down_blocks[-1], *middle, unet.up_blocks[0])


@contextmanager
def recomputing(unet: UNet2DConditionModel, wanted: Recompute) -> Iterator[None]:
    """Switch gradient checkpointing on for a while; afterwards it is off, whatever it was switched to meanwhile.

    The text encoders are left alone: they are 1 % of the work.
    """
    set_recompute(unet, wanted)
    try:
        yield
    finally:
        set_recompute(unet, Recompute.OFF)
