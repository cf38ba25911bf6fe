"""How much arithmetic a picture takes, and how much a device can do: the two halves of MFU.

Model FLOP utilisation (Chowdhery et al., "PaLM", 2022, appendix B): arithmetic that the model needs per second, over
what the device's matrix units do at their best. What gradient checkpointing computes a second time is not needed, and
does not count.
"""

import time
from collections.abc import Callable, Iterable, Mapping

import torch

from giornata.diffusion.unet_layers import Kind, Layer

PER_MULTIPLY = 2
"""A multiplication and an addition."""
SIDE = 8192
ROUNDS = 8
WORTH_S = 0.25
"""When no more rounds are begun: an engine measures before its first step."""


def training_flops(layers: Iterable[Layer], ranks: Mapping[str, int]) -> int:
    """Of one picture, forward and backward: 2 per multiplication of each matrix product. Backward, a frozen layer
    passes its gradient on (as much again), an attention has twice its products; nothing is passed on below the first
    adapted block. The adapter's own products are counted three times: forward, and for both gradients. `ranks` are
    those of the adapted layers, by their names.
    """
    layers = tuple(layers)
    first = min((layer.block for layer in layers if layer.name in ranks), default=0)
    total = 0
    for layer in layers:
        backward = 2 if layer.kind is Kind.ATTENTION else 1
        total += layer.multiplies * (1 + (backward if layer.block >= first else 0))
        if layer.name in ranks:
            rank = ranks[layer.name]
            total += 3 * layer.multiplies * rank * (layer.inputs + layer.outputs) // (layer.inputs * layer.outputs)
    return PER_MULTIPLY * total


def matmul_flops_per_s(
    device: torch.device, dtype: torch.dtype, *, side: int = SIDE, clock: Callable[[], float] = time.monotonic
) -> float:
    """What the device does of square matrix products, at best of a few. Takes 2 side² elements of memory, which are
    given back, and waits for the device. The first is to warm up; a slow device makes few more.

    Of normal numbers: a GPU that multiplies equal ones needs less power, and is faster than it ever is at work."""
    draw = torch.Generator(device).manual_seed(0)
    one = torch.empty(side, side, device=device, dtype=dtype).normal_(generator=draw)
    out = torch.empty_like(one)
    found_s: list[float] = []
    while len(found_s) < ROUNDS and (len(found_s) < 2 or sum(found_s) < WORTH_S):
        _wait(device)
        began_s = clock()
        torch.matmul(one, one, out=out)
        _wait(device)
        found_s.append(clock() - began_s)
    best_s = min(found_s)
    return PER_MULTIPLY * side**3 / max(best_s, 1e-9)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
