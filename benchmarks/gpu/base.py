"""A base model with SDXL's shapes and random weights, built on the device: nothing is downloaded or read.

What a step costs does not depend on the numbers, as long as they stay finite.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DDPMScheduler
from transformers import CLIPTokenizer

from benchmarks.rig.full_model import LAYOUT, PARTS, filled, without_weights
from giornata.diffusion.base.models import BaseModel, vae_dtype
from giornata.diffusion.families import SDXL
from giornata.diffusion.families.vocabulary import clip_tokenizer
from giornata.diffusion.tiny.tiny_model import PAD_TOKENS, build_tiny_model
from giornata.protocol.specs import TrainSpec, model_key

Loader = Callable[..., BaseModel]
"""As giornata.diffusion.base.models.load_base."""


def layout_of(model: str, home: Path) -> Path:
    """The folder with the configuration of each part: `full` is SDXL's, `tiny` that of the tests."""
    return LAYOUT if model == "full" else build_tiny_model(home / "tiny")


class Built:
    """Builds the base that a workload asks for on `device`, and keeps hold of it. What wants it on the CPU, to narrow
    it there, gets a copy of it there: random numbers take a CPU a minute."""

    def __init__(self, layout: Path, device: str) -> None:
        self._layout, self._device = layout, torch.device(device)
        self.base: BaseModel | None = None

    def __call__(self, spec: TrainSpec, *, device: torch.device | str, dtype: torch.dtype, **_: Any) -> BaseModel:
        wanted, self.base = torch.device(device), None  # two might not fit

        def part(name: str, precision: torch.dtype) -> Any:
            module = filled(without_weights(name, self._layout, precision).to_empty(device=self._device))
            return module.requires_grad_(False).eval().to(wanted)

        vae_config = AutoencoderKL.load_config(self._layout / "vae")
        scheduler = DDPMScheduler.from_pretrained(self._layout / "scheduler")
        self.base = BaseModel(
            family=SDXL,
            unet=part("unet", dtype),
            vae=part("vae", vae_dtype(vae_config, dtype)),
            text_encoders=tuple(part(name, dtype) for name in PARTS if name.startswith("text_encoder")),
            tokenizers=self._tokenizers(),
            noise_scheduler=scheduler,
            prediction_type=scheduler.config.prediction_type,
            key=model_key("train", spec.model_dump()),
            device=wanted,
            dtype=dtype,
        )
        return self.base

    def _tokenizers(self) -> tuple[CLIPTokenizer, ...]:
        folders = [self._layout / name for name in ("tokenizer", "tokenizer_2")]
        if all(folder.is_dir() for folder in folders):
            return tuple(CLIPTokenizer.from_pretrained(folder) for folder in folders)
        return tuple(clip_tokenizer(pad_token=pad) for pad in PAD_TOKENS)
