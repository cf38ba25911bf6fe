"""What training costs, against the example script of diffusers: `python benchmarks/train.py`.

Some jobs of batch 1 are done in five ways, as whole processes, one way after the other and all of them again in each
repetition, so that ratios are of runs under like conditions:

    script   the example script, once for every job (with --baseline-script; --baseline-python if it needs another
             installation, for it imports torchvision)
    cold     ours, a new engine for every job
    warm     ours, one engine for all, one after the other
    joint    ours, one engine, all jobs in one batch with an adapter each
    batch    the control of joint training: one job whose batch holds the batches of all

Prints a table and one JSON line: seconds for all, ms a step, images/s, seconds an image, memory, MFU on CUDA, and
dollars for 1000 steps at --price-usd-per-hour. Steps of the script are by its own progress bar. Without --model the
tiny model of the tests is built, or with --size medium one of 110 million parameters.
"""

import argparse
import functools
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.training_runs import Run, Work, cold, joint, one_batch, script, warm

from giornata.protocol.pipe import InputFile

PICTURES = 6
Way = Callable[[Work, Path], Run]


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "medium"), default="tiny", help="of the model that is built")
    parser.add_argument("--model", help="folder of an SDXL instead")
    parser.add_argument("--resolution", type=int, default=64, help="side of the square, in pixels")
    parser.add_argument("--precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--price-usd-per-hour", type=float, default=0.20)
    parser.add_argument("--baseline-script", type=Path)
    parser.add_argument("--baseline-python", default=sys.executable)
    return parser.parse_args(arguments)


def work_of(options: argparse.Namespace, home: Path) -> Work:
    return Work(
        model=options.model or _model(options.size, home),
        pictures=_pictures(home / "pictures", options.resolution),
        resolution=options.resolution,
        precision=options.precision,
        rank=options.rank,
        batch=options.batch,
        steps=options.steps,
        jobs=options.jobs,
        device=options.device,
        threads=options.threads,
    )


def _model(size: str, home: Path) -> str:
    folder = home / size
    if size == "medium":
        from rig.medium_model import build

        return str(build(folder))
    subprocess.run(
        [sys.executable, "-m", "giornata.diffusion.tiny_model", str(folder)], check=True, capture_output=True
    )
    return str(folder)


def _pictures(folder: Path, size_px: int) -> tuple[InputFile, ...]:
    module = [sys.executable, "-m", "giornata.diffusion.drawings", "teal-heart", str(folder)]
    subprocess.run([*module, "--count", str(PICTURES), "--size", str(size_px)], check=True, capture_output=True)
    return tuple(
        InputFile(path=path, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), name=path.name)
        for path in sorted(folder.glob("*.png"))
    )


def ways_of(options: argparse.Namespace) -> dict[str, Way]:
    ways: dict[str, Way] = {"cold": cold, "warm": warm, "joint": joint, "batch": one_batch}
    if options.baseline_script is None:
        return ways
    baseline = functools.partial(script, path=options.baseline_script, python=options.baseline_python)
    return {"script": baseline, **ways}


def facts_of(runs: Sequence[Run], price_usd_per_hour: float) -> dict[str, Any]:
    """Medians over the repetitions."""
    image_s = statistics.median(run.wall_s / run.images for run in runs)
    steps_s = [run.step_s for run in runs if run.step_s is not None]
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    return {
        "wall_s": [round(run.wall_s, 2) for run in runs],
        "step_ms": round(1000 * statistics.median(steps_s), 2) if steps_s else None,
        "images_per_s": round(1 / image_s, 3),
        "s_per_image": round(image_s, 5),
        "peak_mib": round(max(peaks) / 2**20) if peaks else None,
        "mfu": runs[-1].mfu,
        "usd_per_1000_steps": round(1000 * runs[0].images_per_step * image_s * price_usd_per_hour / 3600, 6),
    }


def ratios(runs: Mapping[str, Sequence[Run]], over: str) -> dict[str, list[float]]:
    """How many times longer `over` took than each other way, in each repetition."""
    return {
        name: [round(other.wall_s / run.wall_s, 3) for other, run in zip(runs[over], each, strict=True)]
        for name, each in runs.items()
        if name != over
    }


def table(facts: Mapping[str, Mapping[str, Any]]) -> str:
    columns = ("wall_s", "step_ms", "images_per_s", "peak_mib", "mfu", "usd_per_1000_steps")
    rows = [["", *columns]]
    for name, each in facts.items():
        wall = each["wall_s"]
        shown = {**each, "wall_s": f"{statistics.median(wall):.1f} ({min(wall):.1f} to {max(wall):.1f})"}
        rows.append([name, *("–" if shown[column] is None else str(shown[column]) for column in columns)])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    ways = ways_of(options)
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        work = work_of(options, home)
        for repetition in range(options.repetitions):
            room = home / f"repetition-{repetition}"
            room.mkdir()
            for way, run in ways.items():
                runs[way].append(run(work, room))
    facts = {way: facts_of(each, options.price_usd_per_hour) for way, each in runs.items()}
    over = next(iter(ways))
    print(table(facts))
    print(f"{over} takes times as long as: {ratios(runs, over)}")
    result = {
        "benchmark": "train",
        **{key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "ways": facts,
        "times_longer": {over: ratios(runs, over)},
    }
    result.pop("baseline_python")
    result["baseline_script"] = options.baseline_script is not None
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
