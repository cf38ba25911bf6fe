"""Draw a sheet of samples as PNG: before training, after each phase, and an example of what each prompt means."""

import random
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import diffusers
import torch
import transformers
from diffusers import UNet2DConditionModel
from PIL import Image

from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.sampling.grid_layout import Group, SheetRow, compose_sheet
from giornata.diffusion.shapes.pictures import draw_shape, grid
from giornata.pretrain.evaluate import pipeline_of, sample
from giornata.pretrain.run_state.committed import CommittedCheckpoint, committed, run_storage
from giornata.pretrain.training.export import export
from giornata.pretrain.training.models import new_unet
from giornata.protocol.pretraining import PretrainConfig

CELL_PX = 128
SEEDS = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """A column of the sheet: the checkpoint that draws it, and the side of its pictures."""

    heading: str
    side_px: int
    checkpoint: CommittedCheckpoint | None


def draw_samples(path: Path, config: PretrainConfig) -> None:
    """Write the sheet. The run's prompts are rows; the states of the model are columns."""
    fix_determinism(threads=1)
    _silence_libraries()
    prompts = config.train.validation_prompts
    states = states_of(config)
    drawn = [_drawn(config, state) for state in states]
    meant = {shape.caption: draw_shape(shape, random.Random(shape.caption)) for shape in grid()}
    groups = [Group(heading=state.heading, captions=tuple(f"seed {seed}" for seed in SEEDS)) for state in states]
    groups.append(Group(heading="meant", captions=("an example",)))
    rows = [
        SheetRow(
            label=_short(prompt),
            text=prompt,
            pictures=(*(tuple(by_seed[place] for by_seed in each) for each in drawn), (meant[prompt],)),
        )
        for place, prompt in enumerate(prompts)
    ]
    title = "What the model has learned"
    subtitle = f"{config.samples:,} pictures trained, from random weights; averaged weights, 25 steps, guidance 4"
    compose_sheet(rows, groups, title=title, subtitle=subtitle, cell_px=CELL_PX).save(path, optimize=True)


def states_of(config: PretrainConfig) -> list[ModelState]:
    """The untrained model, and the last checkpoint of each phase that has one."""
    first = config.phases[0].resolution
    found = [ModelState(heading="before", side_px=first, checkpoint=None)]
    ends = {each.phase: each for each in sorted(committed(run_storage(config)), key=lambda each: -each.step)}
    for place, phase in enumerate(config.phases):
        # The first checkpoint that counts the next phase is the one at the change.
        if (at := ends.get(place + 1)) is not None:
            found.append(ModelState(heading=f"after {phase.resolution} px", side_px=phase.resolution, checkpoint=at))
    return found


@torch.no_grad()
def _drawn(config: PretrainConfig, state: ModelState) -> list[list[Image.Image]]:
    """For each seed, the pictures of all prompts."""
    with tempfile.TemporaryDirectory() as folder:
        if state.checkpoint is None:
            unet = new_unet(config.model.architecture, config.seed).eval()
        else:
            export(config, run_storage(config), Path(folder), checkpoint=state.checkpoint)
            unet = UNet2DConditionModel.from_pretrained(folder, subfolder="unet").eval()
        pipeline = pipeline_of(config.model, unet)
        prompts = config.train.validation_prompts
        return [sample(pipeline, prompts, side_px=state.side_px, seed=seed) for seed in SEEDS]


def _silence_libraries() -> None:
    """Keep progress bars of libraries, and what they tell about a single process, off the terminal."""
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", "torch.distributed is disabled")


def _short(prompt: str) -> str:
    return prompt.split(" on ", maxsplit=1)[0].removeprefix("a ").removeprefix("an ")
