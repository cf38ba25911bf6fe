"""Trains a ControlNet on edges for the model that draws shapes: `python -m tools.tiny_shapes.controlnet OUT`.

The model itself stays as it is. Half of the pictures are shapes, half are single patches of any outline, so that
edges mean edges and not one of six forms. Most captions say color and background only: the form has to come from the
edges.
Checkpoints lie in `OUT.work`: a run that was killed goes on to the same bytes when it is started again.

Shapes: N pictures in all; B pictures of a step; C, H, W of the latents or, with 3 channels, of the pixels.
"""

import argparse
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    ControlNetModel,
    DDPMScheduler,
    EulerDiscreteScheduler,
    StableDiffusionXLControlNetPipeline,
    UNet2DConditionModel,
)
from PIL import Image

from giornata.diffusion.annotators.inline import annotate
from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.draws.randomness import normal, uniform
from giornata.diffusion.optim.objective import NoisyBatch, Objective
from giornata.diffusion.shapes import pictures
from giornata.diffusion.shapes.model import PREDICTION_TYPE, text_parts
from giornata.diffusion.shapes.pictures import PALETTE, SIZE_PX, Shape, draw_shape, filled
from giornata.diffusion.shapes.shipped import WEIGHTS
from giornata.diffusion.tensor_file import write_durably
from giornata.diffusion.tiny.drawings import BACKGROUNDS, CENTER, Placing, paint
from giornata.diffusion.tiny.tiny_model import scheduler
from tools.tiny_shapes.courses import Words, patch, tensor_of, time_ids
from tools.tiny_shapes.evaluate import AT_ONCE, GUIDANCE, STEPS, load
from tools.tiny_shapes.scoring import figure_of
from tools.tiny_shapes.stage import Peers, Ramp, Stage, StageDependencies, StagePlan, TrainedPart

CONDITION_CHANNELS = (8, 16, 32, 64)
FORM_SHARE = 0.25
"""The share of the shapes whose caption names the form."""
SCORES = "scores.json"
SCORED = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlan:
    """The numbers of one training."""

    seed: int = 0
    pictures: int = 12_000
    steps: int = 3_000
    batch: int = 24
    learning_rate: float = 1e-3
    checkpoint_steps: int = 250


def new_controlnet(unet: UNet2DConditionModel) -> ControlNetModel:
    """Make a ControlNet that answers 0, from the first half of the UNet."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=CONDITION_CHANNELS)


def control_picture(index: int, *, seed: int) -> tuple[Image.Image, str]:
    """Return the `index`-th picture and its caption."""
    chance = random.Random(f"{seed}:control:{index}")
    shape = chance.choice(pictures.TRAINED)
    if index % 2:
        told = Shape(color=shape.color, background=shape.background)
        return _patch_picture(shape, chance), told.caption
    form = shape.form if chance.random() < FORM_SHARE else None
    told = Shape(form=form, color=shape.color, background=shape.background)
    return draw_shape(shape, chance), told.caption


def _patch_picture(shape: Shape, chance: random.Random) -> Image.Image:
    if shape.color is None or shape.background is None:
        raise ValueError(f"{shape} leaves something open")
    placing = Placing(
        center=(chance.uniform(*CENTER), chance.uniform(*CENTER)), radius=chance.uniform(*pictures.RADIUS)
    )
    draw = filled(tuple(patch(chance)), PALETTE[shape.color])
    return paint(draw, ground=BACKGROUNDS[shape.background], placing=placing, size_px=SIZE_PX)


def edges_of(picture: Image.Image) -> np.ndarray:
    """Return the edges_HW3 of a picture, uint8, by the annotator that the service offers."""
    return annotate("canny", np.asarray(picture), {})


class Controlled(torch.nn.Module):
    """The UNet under the ControlNet, called as the UNet alone. Only the ControlNet learns."""

    def __init__(self, unet: UNet2DConditionModel, controlnet: ControlNetModel) -> None:
        super().__init__()
        self.unet, self.controlnet = unet, controlnet
        self.edges_BCHW: torch.Tensor | None = None

    @property
    def config(self) -> Any:
        """The UNet's own settings."""
        return self.unet.config

    def forward(
        self, latents_BCHW: torch.Tensor, timesteps_B: torch.Tensor, prompt_BLD: torch.Tensor, **conditions: Any
    ) -> Any:
        """Return the UNet's answer with the ControlNet's residuals."""
        down, mid = self.controlnet(
            latents_BCHW,
            timesteps_B,
            prompt_BLD,
            controlnet_cond=self.edges_BCHW,
            added_cond_kwargs=conditions["added_cond_kwargs"],
            return_dict=False,
        )
        return self.unet(
            latents_BCHW,
            timesteps_B,
            prompt_BLD,
            down_block_additional_residuals=down,
            mid_block_additional_residual=mid,
            **conditions,
        )


@torch.no_grad()
def encoded(vae: AutoencoderKL, plan: ControlPlan) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Return latents_NCHW, edges_N1HW (uint8) and the captions of all pictures."""
    latents, edges, captions = [], [], []
    for first in range(0, plan.pictures, 40):
        drawn = [control_picture(index, seed=plan.seed) for index in range(first, min(first + 40, plan.pictures))]
        latents.append(vae.encode(tensor_of([picture for picture, _ in drawn])).latent_dist.mean)
        edges += [torch.from_numpy(edges_of(picture)[None, :, :, 0].copy()) for picture, _ in drawn]
        captions += [caption for _, caption in drawn]
    return torch.cat(latents) * vae.config.scaling_factor, torch.stack(edges), captions


def course(model: Controlled, vae: AutoencoderKL, plan: ControlPlan) -> TrainedPart:
    """Return the training: velocity prediction, as the model itself was trained."""
    words = Words(text_parts())
    latents_NCHW, edges_N1HW, captions = encoded(vae, plan)
    rows_N = words.rows(captions)
    objective = Objective(
        scheduler=DDPMScheduler.from_config(scheduler(PREDICTION_TYPE).config), prediction_type=PREDICTION_TYPE
    )

    def draw(purpose: str, step: int) -> torch.Tensor:
        return uniform(plan.seed, f"control-{purpose}", step, shape=(plan.batch,))

    def loss(step: int) -> torch.Tensor:
        chosen_B = (draw("picture", step) * len(rows_N)).long()
        latents_BCHW = latents_NCHW[chosen_B]
        spread_B = (torch.arange(plan.batch) + draw("timestep", step)) / plan.batch
        model.edges_BCHW = edges_N1HW[chosen_B].expand(-1, 3, -1, -1).float() / 255
        batch = NoisyBatch(
            latents_BCHW=latents_BCHW,
            noise_BCHW=normal(plan.seed, "control-noise", step, shape=tuple(latents_BCHW.shape)),
            timesteps_B=(spread_B * objective.scheduler.config.num_train_timesteps).long(),
            time_ids_B6=time_ids(torch.ones(plan.batch)),
        )
        return objective.loss(model, batch, words.embedding(words.left_out(rows_N[chosen_B], draw("caption", step))))

    ramp = Ramp(steps=plan.steps, warmup_steps=100, constant_share=0.3)
    return TrainedPart(
        name="controlnet",
        model=model.controlnet,
        loss=loss,
        learning_rate=plan.learning_rate,
        ramp=ramp,
        ema_decay=0.995,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlScore:
    """How well figures lie where the edges say: intersection over union of the masks in the whole picture."""

    count: int
    mean_iou: float
    share_from_075: float


@torch.no_grad()
def score(controlnet: ControlNetModel, *, count: int = SCORED, seed: int = 1, scale: float = 1.0) -> ControlScore:
    """Draw pictures by the edges of others that were never trained on, and compare the figures. With `scale` 0 the
    edges have no effect: the control."""
    base = load(WEIGHTS)
    pipeline = StableDiffusionXLControlNetPipeline(
        **{
            name: part for name, part in base.components.items() if name not in {"image_encoder", "feature_extractor"}
        },
        controlnet=controlnet,
        add_watermarker=False,
    )
    pipeline.scheduler = EulerDiscreteScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    drawn = [control_picture(index, seed=10_000 + seed) for index in range(count)]
    ious: list[float] = []
    for first in range(0, count, AT_ONCE):
        some = drawn[first : first + AT_ONCE]
        found = pipeline(
            [caption for _, caption in some],
            image=[Image.fromarray(edges_of(picture)) for picture, _ in some],
            height=SIZE_PX,
            width=SIZE_PX,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            controlnet_conditioning_scale=scale,
            latents=normal(seed, "control-score", first, shape=(len(some), 4, SIZE_PX // 8, SIZE_PX // 8)),
        ).images
        ious += [iou(picture, result) for (picture, _), result in zip(some, found, strict=True)]
    values = np.array(ious)
    return ControlScore(count=count, mean_iou=float(values.mean()), share_from_075=float((values >= 0.75).mean()))


def iou(asked: Image.Image, drawn: Image.Image) -> float:
    """Return the intersection over union of the figures of two pictures."""
    one_HW, other_HW = figure_of(asked), figure_of(drawn)
    union = int((one_HW | other_HW).sum())
    return int((one_HW & other_HW).sum()) / union if union else 0.0


def train(out: Path, plan: ControlPlan) -> None:
    """Train, write the files as float16, and score what was written."""
    fix_determinism(threads=1)
    diffusers.utils.logging.disable_progress_bar()
    base = load(WEIGHTS)
    base.unet.requires_grad_(False)
    base.vae.requires_grad_(False)
    work = out.with_name(f"{out.name}.work")
    work.mkdir(parents=True, exist_ok=True)
    model = Controlled(base.unet, new_controlnet(base.unet))
    around = StageDependencies(
        plan=StagePlan(seed=plan.seed, checkpoint_steps=plan.checkpoint_steps, unet_steps=plan.steps),
        peers=Peers(),
        folder=work,
        say=lambda line: print(time.strftime("%H:%M:%S"), line, flush=True),
        clock_s=time.monotonic,
    )
    Stage(course(model, base.vae, plan), around).run()
    model.controlnet.to(dtype=torch.float16).save_pretrained(out, safe_serialization=True)
    write_scores(out)


def write_scores(out: Path) -> None:
    """Score the written files, and write the scores beside them."""
    controlnet = ControlNetModel.from_pretrained(out, torch_dtype=torch.float32)
    scores = {
        "with_edges": [score(controlnet, seed=seed) for seed in (1, 2, 3)],
        "without_edges": [score(controlnet, seed=1, scale=0.0)],
    }
    told = {
        name: [{field: getattr(each, field) for field in ControlScore.__slots__} for each in found]
        for name, found in scores.items()
    }
    write_durably(out / SCORES, (json.dumps(told, indent=1) + "\n").encode())
    print(json.dumps(told), flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m tools.tiny_shapes.controlnet", description=__doc__)
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("--steps", type=int, default=ControlPlan().steps, metavar="N")
    parser.add_argument("--pictures", type=int, default=ControlPlan().pictures, metavar="N")
    options = parser.parse_args(arguments)
    train(options.out, ControlPlan(steps=options.steps, pictures=options.pictures))


if __name__ == "__main__":
    main()
