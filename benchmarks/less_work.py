"""What small pictures first save and cost in quality: `python -m benchmarks.less_work`.

The recipe `shapes` on drawn pictures, once plain and once in each of --ways, for every seed:

small-first:SHARE  that share of the samples is trained at half the resolution, in a phase before

The runs of one seed begin with the same weights, hold the same rows back, and run side by side; those with one phase
take the same rows in the same steps with the same noise. Validation loss is that of the averaged weights, at full
size, on rows that are never trained, with the weights by signal-to-noise that the recipe trains with.
Told is the loss as a share of the plain run's, after equally many samples and after equally much time, by level of
noise (0: hardly any, 9: hardly anything else); and what a sample costs. Seconds are of CPU, of the trainer's process,
validation apart. FLOPs are counted, not measured: which share of them is left, here and in Stable Diffusion 2's UNet.

Prints a table, then one JSON line. With --results the curves of each seed are added to a file of JSON lines, and what
stands there already is not trained again. --quick only shows that it runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.rig import less_work_run
from benchmarks.rig.curves import compared
from benchmarks.rig.figures import conclude, machine, spread, spread_words
from benchmarks.rig.less_work_run import PLAIN, SMALL_FIRST
from benchmarks.rig.pretraining_data import drawn, encoded
from giornata.protocol.pretraining import Architecture

SIDE_PX = 64
LossCurves = dict[int, dict[str, list[Mapping[str, Any]]]]
"""By seed and way."""
FLOPS_OF = ((Architecture.SHAPES, 64), (Architecture.SD2, 256), (Architecture.SD2, 512))


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=["small-first:0.75"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--samples", type=int, default=32_000, help="of each run, repeats included")
    parser.add_argument("--rows", type=int, default=3_000, help="different pictures")
    parser.add_argument("--validation-rows", type=int, default=256)
    parser.add_argument("--validation-steps", type=int, default=25)
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--results", type=Path, help="JSON lines to add to, of runs with these options")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.samples, options.rows = [0], 512, 300
        options.validation_rows, options.validation_steps = 16, 1
    return options


def read(results: Path | None) -> LossCurves:
    """What stands there already."""
    lines = [] if results is None or not results.exists() else results.read_text(encoding="utf-8").splitlines()
    found: LossCurves = {}
    for one in map(json.loads, lines):
        found.setdefault(one["seed"], {}).update(one["curves"])
    return found


def measure(options: argparse.Namespace, known: LossCurves, folder: Path) -> LossCurves:
    """The curves of all seeds, those that are known among them."""
    ways = [PLAIN, *options.ways]
    missing = {seed: [way for way in ways if way not in known.get(seed, {})] for seed in options.seeds}
    trained = _trained(options, missing, folder) if any(missing.values()) else {}
    return {seed: known.get(seed, {}) | trained.get(seed, {}) for seed in options.seeds}


def _trained(options: argparse.Namespace, missing: Mapping[int, Sequence[str]], folder: Path) -> LossCurves:
    names = ("samples", "validation_rows", "validation_steps", "resolution")
    work = {"folder": str(folder), "seed": 0} | {name: getattr(options, name) for name in names}
    config = less_work_run.config_of(work | {"way": f"{SMALL_FIRST}:0.5"})  # which has every size
    drawn(config, folder, rows=options.rows, side_px=SIDE_PX)
    encoded(config)
    found: LossCurves = {}
    for seed, ways in missing.items():
        if not ways:
            continue
        with ThreadPoolExecutor(len(ways)) as side_by_side:
            curves = list(
                side_by_side.map(lambda way, seed=seed: run_in_a_process(work | {"way": way, "seed": seed}), ways)
            )
        found[seed] = dict(zip(ways, curves, strict=True))
        for way, curve in found[seed].items():
            last = curve[-1]
            sys.stderr.write(f"seed {seed}, {way}: loss {last['loss']:.5f}, {last['cpu_s']:.0f} CPU s\n")
        if options.results is not None:
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"seed": seed, "curves": found[seed]}) + "\n")
    return found


def run_in_a_process(work: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The curve of one run (benchmarks.rig.less_work_run)."""
    command = [sys.executable, "-m", less_work_run.__name__, json.dumps(work)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ran.returncode:
        sys.exit(f"a run ended with {ran.returncode}:\n{ran.stderr[-3000:]}")
    curve: list[Mapping[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return curve


def summary(curves: LossCurves, way: str) -> dict[str, Any]:
    """Over the seeds: median, least and greatest of what `compared` says of each."""
    each = [compared(by_way[PLAIN], by_way[way]) for by_way in curves.values()]
    found: dict[str, Any] = {"cpu_s_per_sample": spread([one["cpu_s_per_sample"] for one in each], 3)}
    for when in ("equal_samples", "equal_time"):
        levels = each[0][when]["levels"]
        found[when] = {
            "loss": spread([one[when]["loss"] for one in each], 4),
            "levels": {level: spread([one[when]["levels"][level] for one in each], 4) for level in levels},
        }
    return found


def flops_left(ways: Sequence[str]) -> list[dict[str, Any]]:
    """Of which model at which resolution, the share of its FLOPs that is left."""
    return [
        {
            "architecture": architecture.value,
            "resolution": resolution,
            "way": way,
            "flops_left": round(less_work_run.flops_left(way, architecture, resolution), 4),
        }
        for architecture, resolution in FLOPS_OF
        for way in ways
    ]


def table(way: str, told: Mapping[str, Any]) -> str:
    """Of one way."""
    lines = [f"{way}: CPU s a sample, of plain: {spread_words(told['cpu_s_per_sample'])}"]
    lines.append(f"{'loss, of plain':16}{'equal samples':>30}{'equal time':>30}")
    samples, time = told["equal_samples"], told["equal_time"]
    lines.append(f"{'all levels':16}{spread_words(samples['loss']):>30}{spread_words(time['loss']):>30}")
    for level in samples["levels"]:
        pair = spread_words(samples["levels"][level]), spread_words(time["levels"][level])
        lines.append(f"{'level ' + level:16}{pair[0]:>30}{pair[1]:>30}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    before = machine()
    with tempfile.TemporaryDirectory(prefix="giornata-less-work-") as name:
        curves = measure(options, read(options.results), Path(name))
    told = {way: summary(curves, way) for way in options.ways}
    for way in options.ways:
        print(table(way, told[way]))
    left = flops_left(options.ways)
    for row in left:
        print(f"{row['way']}: FLOPs left in {row['architecture']} at {row['resolution']} px: {row['flops_left']:.1%}")
    conclude(
        {
            "benchmark": "less_work",
            "machine": before,
            **{key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
            "found": told,
            "flops_left": left,
            "ends": {str(seed): {way: curve[-1] for way, curve in each.items()} for seed, each in curves.items()},
            "curves": {str(seed): each for seed, each in curves.items()},
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
