"""Attention that looks up its parameters once, and projects the text once for all steps of the same rows.

diffusers asks for the signature of an attention's processor in each call. The answer takes longer than the products
of a small layer, and on a GPU longer than the launch of the kernels: 140 times in each pass of SDXL's UNet. Python
answers at once for a function that carries its signature.

The keys and values of a cross-attention depend on the prompts and on the weights, and on no timestep. SDXL's take
some 13 MB for each prompt in half precision.
"""

import inspect
from typing import Any

import torch
from diffusers.models.attention_processor import AttnProcessor2_0

TextProjections = dict[tuple[Any, str], torch.Tensor]
"""Keys and values of the text, by attention layer and name of the projection."""


class _TextProjectedOnce:
    """An attention layer as its processor sees it, whose keys and values of the text are computed once."""

    def __init__(self, attention: Any, projections: TextProjections) -> None:
        self._attention, self._projections = attention, projections

    def to_k(self, text_BLD: torch.Tensor) -> torch.Tensor:
        return self._once("to_k", text_BLD)

    def to_v(self, text_BLD: torch.Tensor) -> torch.Tensor:
        return self._once("to_v", text_BLD)

    def _once(self, name: str, text_BLD: torch.Tensor) -> torch.Tensor:
        key = self._attention, name
        if key not in self._projections:
            self._projections[key] = getattr(self._attention, name)(text_BLD)
        return self._projections[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._attention, name)


class SignedAttention(AttnProcessor2_0):
    """Computes as diffusers' own processor does. With `text_projections`, the keys and values of the text are taken
    from there, and put there in the first call: a caller gives the same ones only with the same text and weights."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        temb: torch.Tensor | None = None,
        *,
        text_projections: TextProjections | None = None,
    ) -> Any:
        if text_projections is not None and encoder_hidden_states is not None:
            attn = _TextProjectedOnce(attn, text_projections)
        return super().__call__(attn, hidden_states, encoder_hidden_states, attention_mask, temb)

    __call__.__signature__ = inspect.signature(__call__)  # type: ignore[attr-defined]


def look_up_attention_once(unet: Any) -> None:
    """Give the UNet processors that carry their signature, in place of diffusers' default ones only."""
    signed = SignedAttention()
    for layer in unet.modules():
        if type(getattr(layer, "processor", None)) is AttnProcessor2_0:
            layer.processor = signed


def projects_text_once(unet: Any) -> bool:
    """Return True when all attention layers of the UNet take `text_projections`."""
    found = [layer.processor for layer in unet.modules() if hasattr(layer, "processor")]
    return bool(found) and all(isinstance(processor, SignedAttention) for processor in found)
