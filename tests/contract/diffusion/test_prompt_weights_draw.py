"""Weights in a prompt move what the drawing model draws in the way that they say."""

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler

from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.encode.prompt_embeds import PromptEncoder
from giornata.diffusion.shapes.pictures import SIZE_PX
from giornata.diffusion.shapes.shipped import WEIGHTS
from giornata.protocol.specs import TrainSpec

SEEDS, STEPS = 6, 12


@pytest.fixture(scope="module")
def drawing_base() -> BaseModel:
    spec = TrainSpec(pretrained_model_name_or_path=str(WEIGHTS), dataset="ds_1", seed=1, resolution=SIZE_PX)
    return load_base(spec, device="cpu", dtype=torch.float32)


def redness(base: BaseModel, prompt: str) -> float:
    """The mean of red less blue, 0 … 255 each, over the middle of pictures of the same noise for every prompt."""
    said = PromptEncoder(base).encode(prompt)
    assert said.pooled_P is not None
    assert said.negative_pooled_P is not None
    parts = {"unet": base.unet, "vae": base.vae, "text_encoders": base.text_encoders, "tokenizers": base.tokenizers}
    scheduler = EulerDiscreteScheduler.from_config(base.noise_scheduler.config)
    pipeline = base.family.assemble(**parts, scheduler=scheduler)
    pipeline.set_progress_bar_config(disable=True)
    side = SIZE_PX // 8
    noise_BCHW = torch.stack([normal(seed, "prompt-weights", shape=(4, side, side)) for seed in range(SEEDS)])
    drawn_BHW3 = pipeline(
        prompt_embeds=said.prompt_LD.expand(SEEDS, -1, -1),
        pooled_prompt_embeds=said.pooled_P.expand(SEEDS, -1),
        negative_prompt_embeds=said.negative_LD.expand(SEEDS, -1, -1),
        negative_pooled_prompt_embeds=said.negative_pooled_P.expand(SEEDS, -1),
        latents=noise_BCHW,
        height=SIZE_PX,
        width=SIZE_PX,
        num_inference_steps=STEPS,
        guidance_scale=4.0,
        output_type="np",
    ).images
    middle = slice(SIZE_PX // 3, -SIZE_PX // 3)
    mean_3 = np.asarray(drawn_BHW3)[:, middle, middle].mean(axis=(0, 1, 2)) * 255
    return float(mean_3[0] - mean_3[2])


def test_color_with_more_weight_is_drawn_more(drawing_base: BaseModel) -> None:
    prompts = ("a red (blue:1.4) circle", "a red blue circle", "a (red:1.4) blue circle")
    bluer, even, redder = (redness(drawing_base, prompt) for prompt in prompts)
    assert bluer + 10 < even < redder - 10


def test_color_with_less_weight_is_drawn_less(drawing_base: BaseModel) -> None:
    full, less = (redness(drawing_base, prompt) for prompt in ("a red circle", "a (red:0.3) circle"))
    assert less < full - 10
