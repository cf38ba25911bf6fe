"""Attention of which diffusers need not ask the parameters has the bits of diffusers' own."""

import copy
import inspect

import torch
from diffusers.models.attention_processor import Attention, AttnProcessor2_0

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.sampling.attention import SignedAttention, look_up_attention_once


def test_a_unet_with_signed_attention_has_the_bits_of_one_without(tiny_base: BaseModel) -> None:
    draw = torch.Generator().manual_seed(3)
    latents_BCHW, text_BLD = torch.randn((2, 4, 8, 8), generator=draw), torch.randn((2, 77, 64), generator=draw)
    more = {"text_embeds": torch.ones((2, 32)), "time_ids": torch.full((2, 6), 64.0)}
    mask_BL = torch.ones((2, 77))
    mask_BL[0, 5:] = 0
    signed = copy.deepcopy(tiny_base.unet)
    look_up_attention_once(signed)

    layers = [each for each in signed.modules() if isinstance(each, Attention)]
    assert {type(each.processor) for each in layers} == {SignedAttention}
    for mask in (None, mask_BL):
        with torch.no_grad():
            ours, theirs = (
                unet(latents_BCHW, 300, text_BLD, encoder_attention_mask=mask, added_cond_kwargs=more).sample
                for unet in (signed, tiny_base.unet)
            )
        assert torch.equal(ours, theirs)


def test_signed_attention_has_the_parameters_of_diffusers_without_an_import() -> None:
    assert "__signature__" in vars(SignedAttention.__call__)
    assert inspect.signature(SignedAttention().__call__) == inspect.signature(AttnProcessor2_0().__call__)
