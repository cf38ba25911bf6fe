"""Attention of which diffusers need not ask the parameters has the bits of diffusers' own."""

import copy
import inspect

import torch
from diffusers.models.attention_processor import Attention, AttnProcessor2_0

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.sampling.attention import (
    SignedAttention,
    TextProjections,
    look_up_attention_once,
    projects_text_once,
)


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


def test_signed_attention_has_the_parameters_of_diffusers_and_the_projections_without_an_import() -> None:
    assert "__signature__" in vars(SignedAttention.__call__)
    ours, theirs = (
        list(inspect.signature(each.__call__).parameters) for each in (SignedAttention(), AttnProcessor2_0())
    )
    assert ours == [*(name for name in theirs if name not in {"args", "kwargs"}), "text_projections"]


def test_passes_of_the_same_rows_project_their_text_once_and_have_the_same_bits(tiny_base: BaseModel) -> None:
    draw = torch.Generator().manual_seed(4)
    latents_BCHW, text_BLD = torch.randn((2, 4, 8, 8), generator=draw), torch.randn((2, 77, 64), generator=draw)
    more = {"text_embeds": torch.ones((2, 32)), "time_ids": torch.full((2, 6), 64.0)}
    unet = copy.deepcopy(tiny_base.unet)
    look_up_attention_once(unet)
    assert projects_text_once(unet)
    assert not projects_text_once(tiny_base.unet)
    of_text = [each for each in unet.modules() if isinstance(each, Attention) and each.is_cross_attention]
    calls = []
    for layer in of_text:
        for projection in (layer.to_k, layer.to_v):
            projection.register_forward_hook(lambda *_: calls.append(1))
    projections: TextProjections = {}
    for timestep in (900, 300, 10):
        with torch.no_grad():
            ours, theirs = (
                unet(latents_BCHW, timestep, text_BLD, added_cond_kwargs=more, cross_attention_kwargs=each).sample
                for each in ({"text_projections": projections}, None)
            )
        assert torch.equal(ours, theirs)
    once = 2 * len(of_text)
    assert len(projections) == once
    assert len(calls) == once + 3 * once  # those of the passes without `text_projections` beside
