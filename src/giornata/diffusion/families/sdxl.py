"""The family Stable Diffusion XL (Podell et al., 2023, arXiv 2307.01952): two text encoders, pooled text,
micro-conditioning."""

import re
from collections.abc import Iterable
from dataclasses import replace

from giornata.diffusion.families.family import Family, TextEncoder

# ---- the names that kohya's trainer, and most tools that load LoRAs, give to the layers of SDXL
#
# Its UNet is built as in Stability's own code: `input_blocks`, `middle_block` and `output_blocks`, numbered through
# over all levels. With n resnets per level on the way down, diffusers' `down_blocks.b.resnets.l` is
# `input_blocks.(1 + b(n+1) + l).0`, and `up_blocks.b.resnets.l` is `output_blocks.(b(n+1) + l).0`, as there are n+1
# on the way up. Attention is the second entry of a block, upsampling the third.

SDXL_LAYERS_PER_BLOCK = 2
PREFIXES = {"unet": "lora_unet", "text_encoder": "lora_te1", "text_encoder_2": "lora_te2"}

RESNET_LAYERS = {
    "conv1": "in_layers.2",
    "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1",
    "conv_shortcut": "skip_connection",
}
SINGLE_LAYERS = {
    "conv_in": "input_blocks.0.0",
    "conv_out": "out.2",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
}
_BLOCK = re.compile(r"(down_blocks|up_blocks)\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.+)")
_MIDDLE = re.compile(r"mid_block\.(resnets|attentions)\.(\d+)\.(.+)")


def kohya_name(layer: str, *, layers_per_block: int = SDXL_LAYERS_PER_BLOCK) -> str:
    """Return the name in kohya's files: `unet.mid_block.attentions.0.proj_in` → `lora_unet_middle_block_1_proj_in`;
    text encoders likewise.

    Raises KeyError for a layer that SDXL does not have.
    """
    prefix, _, name = layer.partition(".")
    if prefix == "unet":
        name = _stability_name(name, layers_per_block)
    return f"{PREFIXES[prefix]}_{name.replace('.', '_')}"


def layers_per_block_of(layers: Iterable[str]) -> int | None:
    """Return the resnets per level on the way down, read off the names of some UNet's layers. Each level has
    attentions and resnets numbered from 0, and one more of them on the way up. None when no name tells."""
    found = []
    for layer in layers:
        match = _BLOCK.fullmatch(layer.removeprefix("unet."))
        if match is not None and match[3] in {"resnets", "attentions"}:
            found.append(int(match[4]) + (match[1] == "down_blocks"))
    return max(found, default=None)


def _stability_name(name: str, layers_per_block: int) -> str:
    if name in SINGLE_LAYERS:
        return SINGLE_LAYERS[name]
    if match := _MIDDLE.fullmatch(name):
        kind, number, rest = match.groups()
        place = 1 if kind == "attentions" else 2 * int(number)
        return f"middle_block.{place}.{_inner(kind, rest)}"
    match = _BLOCK.fullmatch(name)
    if match is None:
        raise KeyError(f"SDXL's UNet has no layer {name}")
    side, block, kind, number, rest = match.groups()
    first = int(block) * (layers_per_block + 1)
    if kind == "downsamplers":
        return f"input_blocks.{first + layers_per_block + 1}.0.op"
    if kind == "upsamplers":
        return f"output_blocks.{first + layers_per_block}.2.conv"
    place = 0 if kind == "resnets" else 1
    inner = _inner(kind, rest)
    if side == "down_blocks":
        return f"input_blocks.{1 + first + int(number)}.{place}.{inner}"
    return f"output_blocks.{first + int(number)}.{place}.{inner}"


def _inner(kind: str, rest: str) -> str:
    return RESNET_LAYERS[rest] if kind == "resnets" else rest


SDXL = Family(
    name="sdxl",
    title="Stable Diffusion XL",
    pipeline="StableDiffusionXLPipeline",
    pipelines=frozenset({"StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline"}),
    pipeline_options={"add_watermarker": False},
    text_encoders=(
        TextEncoder(folder="text_encoder", tokenizer="tokenizer", class_name="CLIPTextModel"),
        TextEncoder(folder="text_encoder_2", tokenizer="tokenizer_2", class_name="CLIPTextModelWithProjection"),
    ),
    hidden_layer=-2,
    pooled=True,
    force_zeros_for_empty_prompt=True,
    unet_settings={"addition_embed_type": "text_time", "in_channels": 4, "out_channels": 4},
    guidance_scale=5.0,
    kohya_name=kohya_name,
    base_model_version="sdxl_base_v1-0",
    architecture="stable-diffusion-xl-v1-base",
    implementation="https://github.com/Stability-AI/generative-models",
    hub_tags=("stable-diffusion-xl", "stable-diffusion-xl-diffusers"),
    single_file_keys={
        "UNet": "model.diffusion_model.input_blocks.0.0.weight",
        "UNet's added conditioning": "model.diffusion_model.label_emb.0.0.weight",
        "VAE": "first_stage_model.encoder.conv_in.weight",
        "first text encoder": "conditioner.embedders.0.transformer.text_model.embeddings.token_embedding.weight",
        "second text encoder": "conditioner.embedders.1.model.token_embedding.weight",
    },
)

# Of the pictures that the refiner draws, and of those that it keeps away from: diffusers' defaults.
AESTHETIC_SCORE, NEGATIVE_AESTHETIC_SCORE = 6.0, 2.5

SDXL_REFINER = replace(
    SDXL,
    name="sdxl-refiner",
    title="Stable Diffusion XL's refiner",
    pipeline="StableDiffusionXLImg2ImgPipeline",
    pipelines=frozenset({"StableDiffusionXLImg2ImgPipeline"}),
    pipeline_options={"add_watermarker": False, "requires_aesthetics_score": True},
    text_encoders=SDXL.text_encoders[1:],
    force_zeros_for_empty_prompt=False,
)
"""The model that goes on with pictures that SDXL has begun. It is not among `FAMILIES`: it is not trained here.
It is told a score of how a picture looks, in place of a size."""
