"""SDXL as it was published but for its weights, which are random: what a step costs does not depend on them."""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from giornata.diffusion.base.single_file import LAYOUTS
from giornata.diffusion.families.vocabulary import clip_tokenizer
from giornata.diffusion.tiny.place_model import place_model
from giornata.diffusion.tiny.tiny_model import PAD_TOKENS

LAYOUT = LAYOUTS / "sdxl"
DTYPE = torch.bfloat16
PARTS: Mapping[str, Callable[[Path], Any]] = MappingProxyType(
    {
        "unet": lambda folder: UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(folder)),
        "vae": lambda folder: AutoencoderKL.from_config(AutoencoderKL.load_config(folder)),
        "text_encoder": lambda folder: CLIPTextModel(CLIPTextConfig.from_pretrained(folder)),
        "text_encoder_2": lambda folder: CLIPTextModelWithProjection(CLIPTextConfig.from_pretrained(folder)),
    }
)


def build(directory: Path, device: str = "cpu") -> Path:
    """Build it at `directory`, in the layout of diffusers; one that is there already is kept. 7 GB; minutes, unless
    `device` is a GPU, which draws the numbers in seconds."""
    return place_model(directory, partial(_write, device=device))


def without_weights(part: str, layout: Path = LAYOUT, dtype: torch.dtype = DTYPE) -> nn.Module:
    """One of PARTS; its parameters have shapes and no memory. `layout` is the folder of the configurations."""
    with torch.device("meta"):
        module: nn.Module = PARTS[part](layout / part)
    return module.to(dtype)


def _write(directory: Path, device: str) -> None:
    for name in PARTS:
        part: Any = filled(without_weights(name).to_empty(device=device)).to("cpu")
        part.save_pretrained(directory / name)
    for name, pad in zip(("tokenizer", "tokenizer_2"), PAD_TOKENS, strict=True):
        clip_tokenizer(pad_token=pad).save_pretrained(directory / name)
    shutil.copytree(LAYOUT / "scheduler", directory / "scheduler")
    shutil.copyfile(LAYOUT / "model_index.json", directory / "model_index.json")


@torch.no_grad()
def filled(module: nn.Module) -> nn.Module:
    """Numbers that stay finite on their way through all layers: products keep the variance, norms do nothing."""
    draw = torch.Generator(next(module.parameters()).device).manual_seed(0)
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, parameter[0].numel() ** -0.5, generator=draw)
        else:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    for name, buffer in module.named_buffers():
        if not name.endswith("position_ids"):
            raise RuntimeError(f"{name} is a buffer, and nobody knows what it holds")
        buffer.copy_(torch.arange(buffer.numel()).view_as(buffer))
    return module
