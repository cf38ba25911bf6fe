"""Attention whose parameters are looked up once.

diffusers asks for the signature of an attention's processor in each call. The answer takes longer than the products
of a small layer, and on a GPU longer than the launch of the kernels: 140 times in each pass of SDXL's UNet. Python
answers at once for a function that carries its signature.
"""

import inspect
from typing import Any

from diffusers.models.attention_processor import AttnProcessor2_0


class SignedAttention(AttnProcessor2_0):
    """Computes as diffusers' own processor does."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return super().__call__(*arguments, **options)

    __call__.__signature__ = inspect.signature(AttnProcessor2_0.__call__)  # type: ignore[attr-defined]


def look_up_attention_once(unet: Any) -> None:
    """Give the UNet processors that carry their signature, in place of diffusers' default ones only."""
    signed = SignedAttention()
    for layer in unet.modules():
        if type(getattr(layer, "processor", None)) is AttnProcessor2_0:
            layer.processor = signed
