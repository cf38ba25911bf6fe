"""LoRAs on the text encoders, for as long as one prompt is encoded.

The weights of the text encoders are never written: each adapted layer's answer has the LoRA's product added to it.
So the text encoders are afterwards what they were before, to the byte.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from giornata.diffusion.base.low_rank import LowRank


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLora:
    """The part of a LoRA for the text encoders: for each of them, layers by their names in it. `key` tells LoRAs
    apart, such as the sha256 of the file."""

    key: str
    encoders: tuple[Mapping[str, LowRank], ...]


@contextmanager
def text_loras_on(text_encoders: Sequence[nn.Module], loras: Sequence[tuple[TextLora, float]]) -> Iterator[None]:
    """Within, the text encoders answer with these LoRAs, each times its weight."""
    with ExitStack() as hooks:
        for lora, weight in loras:
            for encoder, layers in zip(text_encoders, lora.encoders, strict=True):
                for name, factors in layers.items() if weight != 0 else ():
                    hooks.enter_context(encoder.get_submodule(name).register_forward_hook(_adding(factors, weight)))
        yield


def _adding(factors: LowRank, weight: float) -> Callable[..., torch.Tensor]:
    """Return a hook that adds the LoRA's product to a linear layer's output."""
    scale = factors.scale * weight

    def hook(_layer: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        (inputs,) = arguments
        moved = factors.to(output.device, output.dtype)
        return output + functional.linear(functional.linear(inputs, moved.down), moved.up_OR) * scale

    return hook
