"""SDXL's refiner beside a base model: its published shapes or tiny ones, with random weights, in diffusers' layout.

The refiner has the second of SDXL's text encoders alone, and is told a score of looks in place of a size.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from torch import nn

from benchmarks.rig.full_model import DTYPE, filled

SCORE_IDS = 5
"""Numbers of the micro-conditioning: two sizes, a place of two, and a score."""
# Stability's sd_xl_refiner.yaml: model_channels 384, channel_mult [1, 2, 4, 4], num_head_channels 64,
# transformer_depth 4, context_dim 1280.
PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "block_out_channels": (384, 768, 1536, 1536),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": 4,
        "attention_head_dim": (6, 12, 24, 24),
    }
)
SHARED = ("vae", "text_encoder_2", "tokenizer_2", "scheduler")


def refiner_config(base: Path, *, full: bool) -> dict[str, Any]:
    """Return the settings of the refiner's UNet beside the base model in this folder."""
    config = dict(UNet2DConditionModel.load_config(base / "unet"))
    text = json.loads((base / "text_encoder_2" / "config.json").read_text(encoding="utf-8"))
    width = int(text["projection_dim"])
    ids = SCORE_IDS * int(config["addition_time_embed_dim"])
    own = {"cross_attention_dim": width, "projection_class_embeddings_input_dim": ids + width}
    return config | (PUBLISHED if full else {}) | own


def build_refiner(base: Path, directory: Path, *, full: bool, device: str) -> Path:
    """Write the refiner of the base model to `directory`, and return that. What both have is copied from the base."""
    for part in SHARED:
        shutil.copytree(base / part, directory / part)
    with torch.device("meta"):
        empty: nn.Module = UNet2DConditionModel.from_config(refiner_config(base, full=full))
    unet: Any = filled(empty.to(DTYPE if full else torch.float32).to_empty(device=device)).to("cpu")
    unet.save_pretrained(directory / "unet")
    index = json.loads((base / "model_index.json").read_text(encoding="utf-8"))
    index |= {"_class_name": "StableDiffusionXLImg2ImgPipeline", "requires_aesthetics_score": True}
    index |= {"text_encoder": [None, None], "tokenizer": [None, None], "force_zeros_for_empty_prompt": False}
    (directory / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return directory
