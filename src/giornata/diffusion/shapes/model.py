"""The small SDXL that draws shapes: its untrained parts. The weights depend on their names alone.

A VAE from 64 x 64 pixels to 8 x 8 latents, two CLIP text encoders that stay as random as they are, and a UNet with
attention at both of its levels. 4 million parameters, under 8 MB as float16.

The first weights make so short a training work: resnets, attention and the UNet's output return nothing at first
(their last layer is 0), so that signals pass at unit size; and the text encoders' embeddings are 50 times as far
apart as CLIP's, because they are never trained.
"""

import math
from dataclasses import dataclass

import torch
from diffusers import AutoencoderKL, StableDiffusionXLPipeline, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from giornata.diffusion.shapes.pictures import SIZE_PX
from giornata.diffusion.tiny.tiny_model import PAD_TOKENS, WORDS, scheduler, text_config, tokenizer
from giornata.diffusion.tiny.tiny_weights import draw_weights

PURPOSE = "drawing-model"
HIDDEN = 64
TOKEN_DEVIATION, POSITION_DEVIATION = 1.0, 0.5
LOG_VARIANCE = -6.0
PREDICTION_TYPE = "v_prediction"
TIME_WIDTH = 8
MORE_WORDS = ("crescent", "cactus", "cube", "fish")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParts:
    """Two tokenizers with the text encoders that go with them. Nothing here is trained."""

    tokenizers: tuple[CLIPTokenizer, CLIPTokenizer]
    encoders: tuple[CLIPTextModel, CLIPTextModelWithProjection]


def text_parts() -> TextParts:
    """Make two tokenizers, and text encoders that give random features of the text."""
    first, second = (tokenizer((*WORDS, *MORE_WORDS), pad_token=pad, whole=True) for pad in PAD_TOKENS)
    config = text_config(first, hidden=HIDDEN)
    with torch.random.fork_rng(devices=[]):
        encoders = CLIPTextModel(config).eval(), CLIPTextModelWithProjection(config).eval()
    for encoder, name in zip(encoders, ("text_encoder", "text_encoder_2"), strict=True):
        draw_weights(encoder, name, purpose=PURPOSE, gain=_text_gain)
        encoder.requires_grad_(False)
    return TextParts(tokenizers=(first, second), encoders=encoders)


def _text_gain(key: str) -> float:
    # Drawn with a deviation of gain / sqrt(HIDDEN).
    if "token_embedding" in key:
        return TOKEN_DEVIATION * math.sqrt(HIDDEN)
    return POSITION_DEVIATION * math.sqrt(HIDDEN) if "position_embedding" in key else 1.0


def new_vae() -> AutoencoderKL:
    """Make a VAE that has learned nothing."""
    with torch.random.fork_rng(devices=[]):
        vae = AutoencoderKL(
            sample_size=SIZE_PX,
            block_out_channels=(8, 16, 32, 64),
            layers_per_block=1,
            norm_num_groups=2,
            latent_channels=4,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            force_upcast=True,
        )
    draw_weights(vae, "vae", purpose=PURPOSE, gain=_even)
    _silence(vae)
    with torch.no_grad():
        vae.quant_conv.bias[vae.config.latent_channels :] = LOG_VARIANCE
    return vae


def new_unet() -> UNet2DConditionModel:
    """Make a UNet that has learned nothing: it answers 0."""
    with torch.random.fork_rng(devices=[]):
        unet = UNet2DConditionModel(
            sample_size=SIZE_PX // 8,
            in_channels=4,
            out_channels=4,
            block_out_channels=(64, 96),
            layers_per_block=1,
            norm_num_groups=8,
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            transformer_layers_per_block=(1, 1),
            attention_head_dim=(2, 3),
            cross_attention_dim=2 * HIDDEN,
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=TIME_WIDTH,
            projection_class_embeddings_input_dim=6 * TIME_WIDTH + HIDDEN,
        )
    draw_weights(unet, "unet", purpose=PURPOSE, gain=_even)
    _silence(unet)
    with torch.no_grad():
        unet.conv_out.weight.zero_()
    return unet


def _even(_: str) -> float:
    return 1.0


def _silence(model: nn.Module) -> None:
    """Make every resnet and every attention block return its input."""
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(("conv2.weight", "proj_out.weight")):
                parameter.zero_()
            if ".attentions." in key and key.endswith("to_out.0.weight") and "transformer_blocks" not in key:
                parameter.zero_()  # the VAE's attention has no projection around it


def pipeline(text: TextParts, vae: AutoencoderKL, unet: UNet2DConditionModel) -> StableDiffusionXLPipeline:
    """Assemble the whole model as a pipeline of diffusers."""
    return StableDiffusionXLPipeline(
        vae=vae,
        text_encoder=text.encoders[0],
        text_encoder_2=text.encoders[1],
        tokenizer=text.tokenizers[0],
        tokenizer_2=text.tokenizers[1],
        unet=unet,
        scheduler=scheduler(PREDICTION_TYPE),
        add_watermarker=False,
    )
