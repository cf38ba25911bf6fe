"""How well a drawing model follows its prompts: `python -m tools.tiny_shapes.evaluate DIR`.

The model is read from its files, draws the whole grid of forms, colors and backgrounds once per seed, and is scored
by tools.tiny_shapes.scoring. Two controls: the same pictures against shuffled prompts, and drawn pictures
that only went through the VAE, which is the most that can be reached.
"""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, StableDiffusionXLPipeline
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.shapes.pictures import FORMS, SIZE_PX, Shape, draw_shape, grid
from tools.tiny_shapes.courses import tensor_of
from tools.tiny_shapes.scoring import ScoreCounts, Scorer, ShapeReading, count_scores

STEPS, GUIDANCE, AT_ONCE = 25, 4.0, 32
SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One seed's scores."""

    seed: int
    grid: ScoreCounts
    trained: ScoreCounts
    held_out: ScoreCounts
    shuffled: ScoreCounts
    forms: dict[str, ScoreCounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class VaeCeiling:
    """Drawn pictures through the VAE. `psnr_db` is 10 log10(1 / mean squared error), pixels in 0 … 1."""

    psnr_db: float
    grid: ScoreCounts
    forms: dict[str, ScoreCounts]


def load(directory: Path) -> StableDiffusionXLPipeline:
    """The model as anybody loads it; float32, silent."""
    pipeline = StableDiffusionXLPipeline.from_pretrained(directory, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def draw_prompts(
    pipeline: StableDiffusionXLPipeline,
    prompts: Sequence[str],
    *,
    seed: int,
) -> list[Image.Image]:
    """A picture per prompt; the noise is a function of the seed and of the place in the list."""
    drawn: list[Image.Image] = []
    for first in range(0, len(prompts), AT_ONCE):
        some = list(prompts[first : first + AT_ONCE])
        side = SIZE_PX // 8
        noise = [normal(seed, "drawing-prompt", first + place, shape=(4, side, side)) for place in range(len(some))]
        drawn += pipeline(
            prompt=some,
            latents=torch.stack(noise),
            height=SIZE_PX,
            width=SIZE_PX,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
        ).images
    return drawn


def score(pipeline: StableDiffusionXLPipeline, *, seed: int) -> Scores:
    """The whole grid with one seed."""
    asked = grid()
    drawn = draw_prompts(pipeline, [shape.caption for shape in asked], seed=seed)
    scorer = Scorer()
    readings = [scorer.read(picture) for picture in drawn]
    shuffled = random.Random(f"{seed}:shuffled").sample(asked, len(asked))
    return Scores(
        seed=seed,
        grid=count_scores(readings, asked),
        trained=_of(readings, asked, lambda shape: not shape.held_out),
        held_out=_of(readings, asked, lambda shape: shape.held_out),
        shuffled=count_scores(readings, shuffled),
        forms=_by_form(readings, asked),
    )


@torch.no_grad()
def ceiling(vae: AutoencoderKL) -> VaeCeiling:
    """The whole grid, drawn and sent through the VAE."""
    asked = grid()
    drawn = [draw_shape(shape, random.Random(f"ceiling:{shape.caption}")) for shape in asked]
    pixels_BCHW = tensor_of(drawn)
    kept_BCHW = torch.cat(
        [vae.decode(vae.encode(part).latent_dist.mean).sample for part in pixels_BCHW.split(AT_ONCE)]
    )
    error = float(((kept_BCHW.clamp(-1, 1) - pixels_BCHW) / 2).square().mean())
    scorer = Scorer()
    through = VaeImageProcessor().postprocess(kept_BCHW, output_type="pil")
    readings = [scorer.read(picture) for picture in through]
    return VaeCeiling(
        psnr_db=float(-10 * torch.log10(torch.tensor(error))),
        grid=count_scores(readings, asked),
        forms=_by_form(readings, asked),
    )


def _of(readings: Sequence[ShapeReading], asked: Sequence[Shape], wanted: Callable[[Shape], bool]) -> ScoreCounts:
    chosen = [place for place, shape in enumerate(asked) if wanted(shape)]
    return count_scores([readings[place] for place in chosen], [asked[place] for place in chosen])


def _by_form(readings: Sequence[ShapeReading], asked: Sequence[Shape]) -> dict[str, ScoreCounts]:
    def has(form: str) -> Callable[[Shape], bool]:
        return lambda shape: shape.form == form

    return {form: _of(readings, asked, has(form)) for form in FORMS}


def evaluate(
    directory: Path, *, seeds: Sequence[int] = SEEDS, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """All scores of the model in this folder, as JSON: {"ceiling": …, "seeds": […], "steps": 25, "guidance": 4}."""
    pipeline = load(directory)
    found = []
    for seed in seeds:
        found.append(asdict(score(pipeline, seed=seed)))
        say(f"seed {seed}: {found[-1]['grid']['all']:.3f} of the grid, {found[-1]['shuffled']['all']:.3f} shuffled")
    return {"ceiling": asdict(ceiling(pipeline.vae)), "seeds": found, "steps": STEPS, "guidance": GUIDANCE}


def main(arguments: list[str] | None = None) -> None:
    """Command line: prints the scores as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.tiny_shapes.evaluate", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    options = parser.parse_args(arguments)
    fix_determinism(threads=1)
    print(json.dumps(evaluate(options.directory, seeds=options.seeds), indent=1))


if __name__ == "__main__":
    main()
