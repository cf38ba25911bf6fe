"""AdamW whose moments are kept in 8 bits (Dettmers et al., 2022, arXiv 2110.02861), by bitsandbytes.

The moments of a parameter are one byte per value with one fp32 scale (`absmax`) for every BLOCK values; those of a
parameter with fewer than SMALLEST values stay fp32. All of that is the state, bit for bit: nothing is unpacked to be
stored. The codes (`qmap`) are constants of the package. It has kernels for CUDA and for the CPU.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimizer_args import argument

BLOCK, SMALLEST = 256, 4096
TENSORS = ("state1", "state2", "absmax1", "absmax2")
"""First and second moments, and their scales where they are quantized."""


def make(groups: list[dict[str, Any]], spec: TrainSpec, *, fused: bool) -> torch.optim.Optimizer:
    """Make the package's optimizer over these groups."""
    del fused
    import bitsandbytes

    made: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
        groups,
        lr=spec.learning_rate,
        betas=argument(spec, "betas"),
        eps=argument(spec, "eps"),
        weight_decay=argument(spec, "weight_decay"),
        min_8bit_size=SMALLEST,
    )
    return made


def begin(parameter: torch.nn.Parameter, step: int, *, on_cuda: bool) -> dict[str, Any]:
    """Return the state of a parameter as the package's own `init_state` makes it, but for the step."""
    del on_cuda
    if parameter.numel() < SMALLEST:
        return {"step": step, "state1": _zeros(parameter, torch.float32), "state2": _zeros(parameter, torch.float32)}
    blocks = -(-parameter.numel() // BLOCK)
    codes = _codes(parameter.device)
    return {
        "step": step,
        "state1": _zeros(parameter, torch.uint8),
        "state2": _zeros(parameter, torch.uint8),
        "absmax1": torch.zeros(blocks, dtype=torch.float32, device=parameter.device),
        "absmax2": torch.zeros(blocks, dtype=torch.float32, device=parameter.device),
        **codes,
    }


def _zeros(parameter: torch.nn.Parameter, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)


@cache
def _codes(device: torch.device) -> Mapping[str, torch.Tensor]:
    """Return the values of the 256 codes, for signed and for unsigned numbers. The tables are constants that all
    parameters share."""
    from bitsandbytes.functional import create_dynamic_map

    return {
        name: create_dynamic_map(signed=signed).to(device) for name, signed in (("qmap1", True), ("qmap2", False))
    }
