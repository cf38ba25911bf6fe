"""Pictures of a run's prompts, drawn with a UNet of the run and the parts that it was trained with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel
from PIL import Image

from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.shapes.model import WEIGHTS
from giornata.diffusion.tiny.tiny_model import SCHEDULE, tiny_pipeline
from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.encoding.frozen_encoder import FIELD
from giornata.protocol.pretraining import LATENT_SIDE_PX, Architecture, Model

STEPS, GUIDANCE, AT_ONCE = 25, 4.0, 16
PURPOSE = "pretrain/sample"


def pipeline_of(model: Model, unet: UNet2DConditionModel) -> Any:
    """diffusers' pipeline of the architecture, with this UNet. Raises InvalidInput when its parts are nowhere."""
    scheduler = EulerDiscreteScheduler(**SCHEDULE, prediction_type=model.prediction_type, steps_offset=1)
    name = model.pretrained_model_name_or_path
    if name is None and model.architecture is Architecture.SDXL_TINY:
        pipeline: Any = tiny_pipeline()
        pipeline.unet = unet
    else:
        if name is None and model.architecture is Architecture.SHAPES:
            name = str(WEIGHTS)
        if name is None:
            hint = "a hub id or a folder with vae/, tokenizer/ and text_encoder/"
            raise InvalidInput([Fault(where=FIELD, message="is not given", hint=hint)])
        kind = StableDiffusionPipeline if model.architecture is Architecture.SD2 else StableDiffusionXLPipeline
        options: dict[str, Any] = {} if model.architecture is not Architecture.SD2 else {"safety_checker": None}
        pipeline = kind.from_pretrained(name, unet=unet, dtype=torch.float32, **options)
    pipeline.scheduler = scheduler
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def sample(pipeline: Any, prompts: Sequence[str], *, side_px: int, seed: int) -> list[Image.Image]:
    """A picture per prompt; the noise is a function of the seed, the side and the place in the list."""
    side, drawn = side_px // LATENT_SIDE_PX, list[Image.Image]()
    for first in range(0, len(prompts), AT_ONCE):
        some = list(prompts[first : first + AT_ONCE])
        noise = [normal(seed, PURPOSE, side, first + place, shape=(4, side, side)) for place in range(len(some))]
        drawn += pipeline(
            prompt=some,
            latents=torch.stack(noise).to(pipeline.device),
            height=side_px,
            width=side_px,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
        ).images
    return drawn


def unet_at(folder: Path) -> UNet2DConditionModel:
    """The UNet of an exported folder."""
    unet: UNet2DConditionModel = UNet2DConditionModel.from_pretrained(folder, subfolder="unet").eval()
    return unet
