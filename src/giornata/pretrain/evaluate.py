"""Judge the weights of a checkpoint: `giornata pretrain eval CONFIG`.

Loss on the rows that were held back, by level of noise; a sheet of the configured prompts; with a CLIP model, its
score on captions of held-back rows and the distance (CMMD) of what is drawn for them from the pictures themselves;
with an Inception network another such distance (FID).
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel
from PIL import Image

from giornata.diffusion.draws.determinism import fix_determinism, let_libraries_repeat
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.sampling.grid_layout import Group, SheetRow, cell_side_px, compose_sheet
from giornata.diffusion.shapes.shipped import WEIGHTS
from giornata.diffusion.tiny.tiny_model import tiny_pipeline
from giornata.diffusion.tiny.tiny_sizes import SCHEDULE
from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data import columns
from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.encoding.frozen_encoder import FIELD
from giornata.pretrain.evaluation.scores import Clip, Inception, clip_score, cmmd, fid
from giornata.pretrain.feeding.examples import examples_of
from giornata.pretrain.feeding.graph import validation_batches, validation_tables
from giornata.pretrain.feeding.rows_of_phase import rows_of_phases
from giornata.pretrain.recipes import read_config
from giornata.pretrain.reported import program, reported
from giornata.pretrain.run_state.committed import CommittedCheckpoint, committed, run_storage
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingProgress
from giornata.pretrain.training.export import export
from giornata.pretrain.training.models import held_draws, objective_of
from giornata.pretrain.training.parallel import shard_model
from giornata.pretrain.training.step import Passes
from giornata.protocol.pretraining import LATENT_SIDE_PX, Architecture, Mode, Model, PretrainConfig

SEEDS = (0, 1, 2, 3)
STEPS, GUIDANCE, AT_ONCE = 25, 4.0, 16
PURPOSE = "pretrain/sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringModels:
    """The networks that score pictures. None: its scores are not wanted."""

    clip: Clip | None
    inception: Inception | None

    @classmethod
    def of(cls, clip: str | None, inception: str | None) -> "ScoringModels":
        """Load a CLIP model by folder or hub id, and a network from a file. Raises InvalidInput."""
        return cls(
            clip=None if clip is None else Clip(clip),
            inception=None if inception is None else Inception(inception),
        )


def evaluate(
    config: PretrainConfig, *, name: str | None, out: Path, models: ScoringModels, most: int, gpu: bool | None = None
) -> dict[str, Any]:
    """The report. `name` is a checkpoint's, None the newest; at most `most` held-back rows are drawn for `models`.
    `gpu`: whether to work on one, by default as the trainers do.

    Raises InvalidInput when there is no such checkpoint, or when parts that are needed are nowhere.
    """
    chosen = checkpoint_of(config, name)
    wanted = config.workers.use_gpu if gpu is None else gpu
    device = torch.device("cuda" if wanted and torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        progress = export(config, run_storage(config), Path(folder), checkpoint=chosen)
        unet: UNet2DConditionModel = (
            UNet2DConditionModel.from_pretrained(folder, subfolder="unet", use_safetensors=True).eval().to(device)
        )
    phase = phase_of(config, progress)
    report: dict[str, Any] = {
        "checkpoint": chosen.name,
        "step": progress.step,
        "samples": progress.samples,
        "resolution": config.phases[phase].resolution,
        "averaged_weights": bool(progress.ema_steps),
        **_losses(config, unet, phase, device),
    }
    if config.model.random_encoders:
        return report  # nothing decodes what these encoded
    pipeline = pipeline_of(config.model, unet).to(device)
    if config.train.validation_prompts:
        report["samples_png"] = str(_sheet(config, pipeline, phase, progress, out))
    if models.clip is not None or models.inception is not None:
        report |= _scores(config, pipeline, models, phase, most)
    return report


def checkpoint_of(config: PretrainConfig, name: str | None) -> CommittedCheckpoint:
    """The checkpoint of this name, or the newest. Raises InvalidInput with the names that exist."""
    found = list(committed(run_storage(config)))
    for each in found:
        if name in {None, each.name}:
            return each
    hint = ", ".join(each.name for each in found) or "train first"
    where = "--checkpoint" if name and found else str(run_storage(config))
    raise InvalidInput([Fault(where=where, message=f"has no checkpoint {name or ''}".strip(), hint=hint)])


def phase_of(config: PretrainConfig, progress: TrainingProgress) -> int:
    """The last phase in which these weights were trained."""
    complete_and_no_more = progress.step_in_phase == 0 and progress.phase > 0
    return min(progress.phase - complete_and_no_more, len(config.phases) - 1)


def _losses(config: PretrainConfig, unet: UNet2DConditionModel, phase: int, device: torch.device) -> dict[str, Any]:
    """The losses on held-back rows, with the noise that the run itself draws for them in that phase."""
    from giornata.pretrain.ray_train.worker import frozen_parts

    source = source_manifest(config)
    frozen = frozen_parts(config, source, device)
    batches = validation_batches(
        config, phase, rows_of_phases(config, source)[phase], source, frozen.encoder, rank=0, world=1
    )
    examples = examples_of(batches, held_draws(config, frozen.scaling), AT_ONCE)
    if not examples:
        return {"validation_rows": 0, "validation_loss": None, "validation_loss_by_level": []}
    channel = Channel()
    losses = Passes(shard_model(unet, config.train, channel, device), objective_of(config), channel).judge(examples)
    return {
        "validation_rows": losses.rows,
        "validation_loss": losses.mean,
        "validation_loss_by_level": list(losses.by_level),
    }


def _sheet(config: PretrainConfig, pipeline: Any, phase: int, progress: TrainingProgress, out: Path) -> Path:
    side_px, prompts = config.phases[phase].resolution, config.train.validation_prompts
    by_seed = [sample(pipeline, prompts, side_px=side_px, seed=seed) for seed in SEEDS]
    rows = [
        SheetRow(label="", text=prompt, pictures=(tuple(pictures[place] for pictures in by_seed),))
        for place, prompt in enumerate(prompts)
    ]
    groups = [Group(heading=f"{side_px} px", captions=tuple(f"seed {seed}" for seed in SEEDS))]
    subtitle = f"step {progress.step:,}; {STEPS} steps, guidance {GUIDANCE:g}"
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"samples-{progress.step:08d}.png"
    cell_px = cell_side_px(side_px)
    compose_sheet(rows, groups, title=config.name, subtitle=subtitle, cell_px=cell_px).save(path, optimize=True)
    return path


def _scores(config: PretrainConfig, pipeline: Any, models: ScoringModels, phase: int, most: int) -> dict[str, Any]:
    real, captions = _held_pictures(config, phase=phase, most=most)
    if not real:
        hint = "train.validation_rows says how many are held back"
        where = "--inception" if models.clip is None else "--clip"
        raise InvalidInput([Fault(where=where, message="no rows are held back to compare with", hint=hint)])
    if models.inception is not None:
        models.inception.check(len(real))  # before hours of drawing
    drawn = sample(pipeline, captions, side_px=config.phases[phase].resolution, seed=config.seed)
    found: dict[str, Any] = {"compared_pictures": len(drawn)}
    if models.clip is not None:
        drawn_ND, real_ND = models.clip.pictures(drawn), models.clip.pictures(real)
        texts_ND = models.clip.texts(captions)
        found["clip_score"] = clip_score(drawn_ND, texts_ND)
        found["clip_score_of_real"] = clip_score(real_ND, texts_ND)
        found["cmmd"] = cmmd(drawn_ND, real_ND)
    if models.inception is not None:
        found["fid"] = fid(models.inception, drawn, real)
    return found


def _held_pictures(config: PretrainConfig, *, phase: int, most: int) -> tuple[list[Image.Image], list[str]]:
    """Return at most `most` held-back pictures with their captions, cut as the phase cuts them."""
    source = source_manifest(config)
    rows_of = rows_of_phases(config, source)[phase]
    cut_here = replace(config, encode=replace(config.encode, mode=Mode.COLOCATED))
    pictures, captions = list[Image.Image](), list[str]()
    for table in validation_tables(cut_here, phase, rows_of, source, rank=0, world=1):
        for row in table.to_pylist():
            if len(pictures) < most and not row[columns.REASON]:
                size = row[columns.TARGET_HEIGHT], row[columns.TARGET_WIDTH]
                pixels_HWC = np.frombuffer(row[columns.PIXELS], dtype=np.uint8).reshape(*size, 3)
                pictures.append(Image.fromarray(pixels_HWC))
                captions.append(row[columns.CAPTION])
    return pictures, captions


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
        pipeline = kind.from_pretrained(name, unet=unet, dtype=torch.float32, use_safetensors=True, **options)
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


def main(
    config: str,
    *,
    checkpoint: str | None = None,
    clip: str | None = None,
    inception: str | None = None,
    rows: int = 256,
    out: Path = Path(),
    report: Path | None = None,
) -> int:
    let_libraries_repeat(os.environ)
    fix_determinism(threads=1)

    def work() -> dict[str, Any]:
        run, models = read_config(config), ScoringModels.of(clip, inception)
        return evaluate(run, name=checkpoint, out=out.absolute(), models=models, most=rows)

    return reported(report, work)


if __name__ == "__main__":
    program(main)
