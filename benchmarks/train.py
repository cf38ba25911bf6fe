"""What training costs, against the example script of diffusers: `python -m benchmarks.train`.

Jobs of batch 1 are done in several ways, as whole processes, one way after the other and all of them again in each
repetition, so that ratios are of runs under like conditions:

    script    the example script, once for every job (with --baseline-script; --baseline-python if it needs another
              installation, for it imports torchvision)
    cold      ours, a new engine for every job
    warm      ours, one engine for all, one after the other
    joint-K   ours, one engine, K jobs in one batch with an adapter each, for every K of --together
    batch-K   the control of joint-K: one adapter, whose batch holds the batches of K jobs
    engines-E with --engines E: E engines at the same time, each with its share of the jobs in one batch

Where K is more than --jobs, that way does K jobs; compared are images/s. Prints a table in Markdown, and one JSON
line: of each way the seconds for all, seconds an image and images/s of whole processes; ms of a step, images/s of
steps alone, and their MFU against the rate of matrix products that is measured at each repetition's beginning (with
--threads threads on a CPU); the most memory that its processes held (on CUDA by torch's allocator, and not of the
script); dollars for 1000 steps of a job, which are its seconds at an hourly price that is assumed, not measured
(--price-usd-per-hour); and how many times more images/s it makes than the first way, repetition
by repetition. Steps of the script are by its own progress bar. Everything with its median, least and largest. A way
that fails is left out, and the JSON line says why.

Without --model one is built: tiny is that of the tests (two minutes for a repetition with the script, on two quiet
cores), medium has 110 million parameters (several times that), full is SDXL's published shape with random weights: 7
GB on disk, for a GPU; it has not been run yet. --jobs, --steps, --resolution, --precision and --repetitions follow
the size unless they are given. No repetition is begun after --minutes.
"""

import argparse
import functools
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.rig.device_rate import device_rate
from benchmarks.rig.training_runs import MeasuredTraining, Work, cold, joint, one_batch, script, side_by_side, warm
from benchmarks.rig.training_table import facts_of, flops_per_image, ratios, table
from giornata.protocol.node.pipe import InputFile

PICTURES = 6
Way = Callable[[Work, Path], MeasuredTraining]
DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "tiny": {"jobs": 4, "steps": 200, "resolution": 64, "precision": "no", "repetitions": 3},
        "medium": {"jobs": 4, "steps": 60, "resolution": 64, "precision": "no", "repetitions": 3},
        "full": {"jobs": 4, "steps": 40, "resolution": 1024, "precision": "bf16", "repetitions": 2},
    }
)


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(DEFAULTS), default="tiny", help="of the model that is built")
    parser.add_argument("--model", help="folder of an SDXL instead; --size then only chooses what follows it")
    parser.add_argument("--resolution", type=int, help="side of the square, in pixels")
    parser.add_argument("--precision", choices=("no", "bf16"))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, default=1, help="of each job")
    parser.add_argument("--together", type=int, nargs="*", default=[1, 2, 4, 8], metavar="K")
    parser.add_argument("--engines", type=int, help="side by side")
    parser.add_argument("--ways", help="only these, with commas between, such as script,warm,joint-4")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--price-usd-per-hour", type=float, default=0.20, help="assumed, of the machine")
    parser.add_argument("--baseline-script", type=Path)
    parser.add_argument("--baseline-python", default=sys.executable)
    options = parser.parse_args(arguments)
    for name, value in DEFAULTS[options.size].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def work_of(options: argparse.Namespace, home: Path) -> Work:
    return Work(
        model=options.model or model_of(options.size, home),
        pictures=pictures_in(home / "pictures", options.resolution),
        resolution=options.resolution,
        precision=options.precision,
        rank=options.rank,
        batch=options.batch,
        steps=options.steps,
        jobs=options.jobs,
        device=options.device,
        threads=options.threads,
    )


def model_of(size: str, home: Path) -> str:
    folder = home / size
    if size == "medium":
        from benchmarks.rig.medium_model import build as build_medium

        return str(build_medium(folder))
    if size == "full":
        from benchmarks.rig.full_model import build as build_full

        return str(build_full(folder))
    subprocess.run(
        [sys.executable, "-m", "giornata.diffusion.tiny.tiny_model", str(folder)], check=True, capture_output=True
    )
    return str(folder)


def pictures_in(folder: Path, size_px: int) -> tuple[InputFile, ...]:
    module = [sys.executable, "-m", "giornata.diffusion.tiny.drawings", "teal-heart", str(folder)]
    subprocess.run([*module, "--count", str(PICTURES), "--size", str(size_px)], check=True, capture_output=True)
    return tuple(
        InputFile(path=path, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), name=path.name)
        for path in sorted(folder.glob("*.png"))
    )


def ways_of(options: argparse.Namespace) -> dict[str, Way]:
    ways: dict[str, Way] = {}
    if options.baseline_script is not None:
        ways["script"] = functools.partial(script, path=options.baseline_script, python=options.baseline_python)
    ways |= {"cold": cold, "warm": warm}
    for places in options.together:
        ways[f"joint-{places}"] = functools.partial(joint, places=places)
        if places > 1:
            ways[f"batch-{places}"] = functools.partial(one_batch, batches=places)
    if options.engines is not None:
        ways[f"engines-{options.engines}"] = functools.partial(side_by_side, engines=options.engines)
    if options.ways is None:
        return ways
    wanted = options.ways.split(",")
    if unknown := sorted(set(wanted) - set(ways)):
        sys.exit(f"--ways: no {', '.join(unknown)}; there are {', '.join(ways)}")
    return {name: ways[name] for name in wanted}


def repeat(options: argparse.Namespace, work: Work, ways: Mapping[str, Way], home: Path) -> dict[str, Any]:
    """All ways, again and again: their runs, the best rate of the device, and why ways failed. What fails once, for
    want of memory perhaps, is left out."""
    runs: dict[str, list[MeasuredTraining]] = {name: [] for name in ways}
    failed: dict[str, str] = {}
    rates, began_s = [], time.monotonic()
    for repetition in range(options.repetitions):
        if time.monotonic() - began_s > 60 * options.minutes:
            break
        room = home / f"repetition-{repetition}"
        room.mkdir()
        rates.append(device_rate(options.device, options.precision, options.threads))
        for way in list(runs):
            try:
                made = ways[way](work, room)
            except SystemExit as error:
                failed[way] = str(error.code)
                del runs[way]
                sys.stderr.write(f"{repetition + 1}: {way}: {failed[way]}\n")
                continue
            runs[way].append(made)
            sys.stderr.write(f"{repetition + 1}: {way}: {made.images} images in {made.wall_s:.1f} s\n")
    return {"runs": runs, "device_flops_per_s": max(rates), "failed": failed}


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    ways = ways_of(options)
    with tempfile.TemporaryDirectory() as name:
        work = work_of(options, Path(name))
        flops = flops_per_image(work)
        measured = repeat(options, work, ways, Path(name))
    runs, rate = measured["runs"], measured["device_flops_per_s"]
    price = options.price_usd_per_hour
    facts = {
        way: facts_of(each, batch=work.batch, price_usd_per_hour=price, flops=flops, device_flops_per_s=rate)
        for way, each in runs.items()
    }
    if not runs:
        return 1
    over = next(iter(runs))
    compared = ratios(runs, over)
    print(table(facts, compared, over=over, price_usd_per_hour=price))
    print(f"{flops / 1e9:.3g} GFLOP an image, the device does {rate / 1e9:.4g} a second")
    result = {
        "benchmark": "train",
        **{key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "flops_per_image": flops,
        "device_flops_per_s": round(rate),
        "ways_facts": facts,
        "failed": measured["failed"],
        "times_of": {over: compared},
    }
    result["assumed_price_usd_per_hour"] = result.pop("price_usd_per_hour")
    result.pop("baseline_python")
    result["baseline_script"] = options.baseline_script is not None
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
