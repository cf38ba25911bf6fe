"""What came out of whole training runs: medians, spreads, and ratios within repetitions."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .training_runs import MeasuredTraining, Work, spec_of

COLUMNS = {
    "wall_s": "all jobs, s",
    "s_per_image": "s an image",
    "images_per_s": "images/s",
    "step_ms": "ms a step",
    "images_per_s_in_steps": "images/s in steps",
    "mfu": "MFU",
    "peak_mib": "peak MiB",
    "usd_per_1000_steps": "USD for 1000 steps, at an assumed ${price:g}/h",
}


def flops_per_image(work: Work) -> int:
    """Arithmetic of one picture, forward and backward, with the adapter that all ways train."""
    import torch
    from diffusers import UNet2DConditionModel

    from giornata.diffusion.base.unet_layers import layers_of, training_flops
    from giornata.protocol.specs import TrainSpec
    from giornata.workloads.train.device.memory_budget import adapter_shapes

    spec = TrainSpec.model_validate(spec_of(work, seed=0))
    with torch.device("meta"):
        unet = UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(Path(work.model) / "unet"))
    layers = layers_of(unet, work.resolution)
    return training_flops(
        layers, {name: adapter_shape.rank for name, adapter_shape in adapter_shapes(layers, spec).items()}
    )


def facts_of(
    runs: Sequence[MeasuredTraining], *, batch: int, price_usd_per_hour: float, flops: int, device_flops_per_s: float
) -> dict[str, Any]:
    """Over the repetitions: medians with (least, largest); the most memory of any. `mfu` is that of steps; None where
    steps are not told, or where several engines share the device. Dollars are for 1000 steps of a job
    whose batch is `batch`, of whole processes: their seconds at the price."""
    image_s = [run.wall_s / run.images for run in runs]
    steps_s = [run.step_s for run in runs if run.step_s is not None]
    in_steps = [run.images_at_once / run.step_s for run in runs if run.step_s is not None]
    alone = [] if any(run.engines > 1 for run in runs) else in_steps
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    return {
        "wall_s": _spread([run.wall_s for run in runs], 2),
        "s_per_image": _spread(image_s, 5),
        "images_per_s": _spread([1 / each for each in image_s], 2),
        "step_ms": _spread([1000 * each for each in steps_s], 2),
        "images_per_s_in_steps": _spread(in_steps, 2),
        "mfu": _spread([each * flops / device_flops_per_s for each in alone], 4),
        "peak_mib": round(max(peaks) / 2**20) if peaks else None,
        "usd_per_1000_steps": round(1000 * batch * statistics.median(image_s) * price_usd_per_hour / 3600, 6),
        "images": [run.images for run in runs],
    }


def ratios(runs: Mapping[str, Sequence[MeasuredTraining]], over: str) -> dict[str, dict[str, Any]]:
    """How many times more images/s each way made than `over`, repetition by repetition: of whole processes, and of
    the steps alone."""
    return {
        name: {
            "whole": _spread(_quotients(runs[over], each, lambda run: run.images / run.wall_s), 3),
            "steps": _spread(_quotients(runs[over], each, _in_steps), 3),
        }
        for name, each in runs.items()
        if name != over
    }


def table(
    facts: Mapping[str, Mapping[str, Any]],
    compared: Mapping[str, Mapping[str, Any]],
    *,
    over: str,
    price_usd_per_hour: float,
) -> str:
    """In Markdown, a line for each way; compared are images/s with those of `over`."""
    headers = [each.format(price=price_usd_per_hour) for each in COLUMNS.values()]
    rows = [["way", *headers, f"times {over}'s images/s", "the same, of steps alone"]]
    for name, each in facts.items():
        times = {"whole": 1, "steps": 1} if name == over else compared[name]
        cells = [*(each[column] for column in COLUMNS), times["whole"], times["steps"]]
        rows.append([name, *map(_shown, cells)])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(widths), *lines[1:]])


def _in_steps(run: MeasuredTraining) -> float | None:
    return None if run.step_s is None else run.images_at_once / run.step_s


def _quotients(over: Sequence[MeasuredTraining], runs: Sequence[MeasuredTraining], of: Any) -> list[float]:
    pairs = [(of(first), of(run)) for first, run in zip(over, runs, strict=True)]
    return [mine / theirs for theirs, mine in pairs if theirs and mine]


def _spread(values: Sequence[float], digits: int) -> dict[str, float] | None:
    if not values:
        return None
    found = {"median": statistics.median(values), "least": min(values), "largest": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def _shown(cell: Any) -> str:
    if cell is None:
        return "–"
    if not isinstance(cell, dict):
        return str(cell)
    if cell["least"] == cell["largest"]:
        return f"{cell['median']:g}"
    return f"{cell['median']:g} ({cell['least']:g} to {cell['largest']:g})"
