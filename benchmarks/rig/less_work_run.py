"""One training run of the recipe `shapes` in a way that may save work, in a process of its own.

`python less_work_run.py '{"folder", "way", "seed", "samples", ...}'` prints its curve: a list of points, one for each
validation at full size. A way is "plain", "small-first:SHARE" (of the samples, at half the resolution), or
"OPTIMIZER:SCHEDULE:RATE".
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from giornata.pretrain.recipes import shapes
from giornata.pretrain.training.loop import train
from giornata.pretrain.training.models import flops_of, unet_on_meta
from giornata.protocol.pretraining import Architecture, Phase, PretrainConfig, PretrainOptimizer
from giornata.protocol.training.optimization import LrScheduler

NEVER = 10**9
LEVEL = "validation_loss_level_"


PLAIN, SMALL_FIRST = "plain", "small-first"


def share_of(way: str, kind: str) -> float:
    """The share after the kind's name; 0 of ways of another kind."""
    name, _, share = way.partition(":")
    return float(share) if name == kind else 0.0


def config_of(work: Mapping[str, Any]) -> PretrainConfig:
    """The recipe with one phase at full size, or one with small pictures before it."""
    recipe = shapes(work["folder"])
    small = round(work["samples"] * share_of(work["way"], SMALL_FIRST))
    sizes = [("small", work["resolution"] // 2, small), ("full", work["resolution"], work["samples"] - small)]
    if (parts := work["way"].split(":"))[0] in set(PretrainOptimizer):
        return _rated(work, recipe, *parts)
    phases = tuple(
        replace(recipe.phases[-1], name=name, resolution=side, samples=samples, train_batch_size=64)
        for name, side, samples in sizes
        if samples
    )
    return _measured(work, recipe, phases)


def _rated(
    work: Mapping[str, Any], recipe: PretrainConfig, optimizer: str, schedule: str, rate: str
) -> PretrainConfig:
    phase = replace(
        recipe.phases[-1],
        resolution=work["resolution"],
        samples=work["samples"],
        train_batch_size=64,
        learning_rate=float(rate),
        lr_scheduler=LrScheduler(schedule),
        lr_warmup_steps=work["warmup_steps"],
    )
    return _measured(work, recipe, (phase,), optimizer=PretrainOptimizer(optimizer))


def _measured(
    work: Mapping[str, Any], recipe: PretrainConfig, phases: tuple[Phase, ...], **changes: Any
) -> PretrainConfig:
    folder = Path(work["folder"])
    settings = replace(
        recipe.train,
        validation_steps=work["validation_steps"],
        validation_rows=work["validation_rows"],
        validation_prompts=(),
        checkpoint_steps=NEVER,
        **changes,
    )
    return replace(
        recipe,
        data=replace(recipe.data, shards=str(folder / "shards")),
        encode=replace(recipe.encode, latents=str(folder / "latents")),
        train=settings,
        phases=phases,
        seed=work["seed"],
    )


def curve(work: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train. Of each validation at full size: samples and CPU seconds of all steps so far (without validations), the
    validation loss of the averaged weights, and that by level of noise."""
    from benchmarks.rig.pretraining_data import read_here
    from benchmarks.rig.pretraining_run import given_by, run_of
    from giornata.pretrain.feeding.graph import validation_batches

    config = config_of(work)
    given = given_by(config, torch.device("cpu"))
    phases = given.phases
    points: list[dict[str, Any]] = []
    spent_s: list[float] = []

    def report(row: Mapping[str, float]) -> None:
        spent_s.append(config.train.global_batch_size / row["images_per_s"])
        if "validation_loss" in row and row["phase"] == len(config.phases) - 1:
            points.append(_point(row, spent_s))

    own = {
        "feeds": read_here(config, phases),
        "held": lambda phase: validation_batches(config, phase, phases[phase], given.source, None, rank=0, world=1),
    }
    # In CPU seconds, so that a step's length is of this process, all its threads.
    with run_of(given, work["folder"], clock_s=time.process_time, report=report, **own) as run:
        train(run)
    return points


def _point(row: Mapping[str, float], spent_s: Sequence[float]) -> dict[str, Any]:
    levels = {name.removeprefix(LEVEL): value for name, value in row.items() if name.startswith(LEVEL)}
    return {"samples": row["samples"], "cpu_s": sum(spent_s), "loss": row["validation_loss"], "levels": levels}


def flops_left(way: str, architecture: Architecture, resolution: int) -> float:
    """The share of a plain picture's FLOPs, forward and backward, that one costs on average in that way; counted as
    giornata.pretrain.training.models.flops_per_picture counts."""
    small = share_of(way, SMALL_FIRST)
    return 1 - small + small * _flops(architecture, resolution // 2) / _flops(architecture, resolution)


@cache
def _flops(architecture: Architecture, resolution: int) -> int:
    return flops_of(unet_on_meta(architecture), resolution)


def main(arguments: Sequence[str]) -> None:
    """The process."""
    torch.set_num_threads(1)
    print(json.dumps(curve(json.loads(arguments[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
