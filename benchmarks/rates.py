"""Learning rates, schedules and optimizers for the recipe `shapes`: `python -m benchmarks.rates`.

Every way trains for the same CPU seconds, --cpu-s, for each of --seeds. A way is OPTIMIZER:SCHEDULE:RATE. What a
sample costs depends on the optimizer alone and is measured first, by a short run of each. That gives the number of
samples, at which the schedule ends. Runs of one seed begin with the same weights and hold the same rows back. The
loss is that of the averaged weights on those rows at the end. Seconds are those of the trainer's process, without
validation.

Prints a table with the least and the greatest of the seeds, then one JSON line. --quick only shows that it runs.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.less_work import SIDE_PX, run_in_a_process
from benchmarks.rig import less_work_run
from benchmarks.rig.figures import conclude, machine
from benchmarks.rig.pretraining_data import drawn, encoded

GLOBAL_BATCH = 64
WAYS = (
    "adamw:constant_with_warmup:1e-3",
    "adamw:constant_with_warmup:2e-3",
    "adamw:constant_with_warmup:4e-3",
    "adamw:cosine:2e-3",
    "adamw:cosine:4e-3",
    "muon:constant_with_warmup:2e-3",
    "muon:cosine:4e-3",
)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cpu-s", type=float, default=20.0, help="CPU seconds of each run's steps")
    parser.add_argument("--rows", type=int, default=2_000, help="different pictures")
    parser.add_argument("--validation-rows", type=int, default=128)
    parser.add_argument("--resolution", type=int, default=32)
    parser.add_argument("--warmup-steps", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if options.quick:
        options.ways, options.seeds, options.cpu_s = ["adamw:cosine:2e-3", "muon:cosine:2e-3"], [0], 1.0
        options.rows, options.validation_rows = 200, 16
    return options


def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[Mapping[str, Any]]]:
    """The end of each run, by way, in the order of the seeds."""
    names = ("validation_rows", "resolution", "warmup_steps")
    work = {"folder": str(folder), "seed": 0} | {name: getattr(options, name) for name in names}
    config = less_work_run.config_of(work | {"way": "plain", "samples": GLOBAL_BATCH, "validation_steps": 1})
    drawn(config, folder, rows=options.rows, side_px=SIDE_PX)
    encoded(config)
    steps_of = {}
    for optimizer in sorted({way.split(":")[0] for way in options.ways}):
        end = _end(work, f"{optimizer}:constant_with_warmup:1e-4", steps=20)
        steps_of[optimizer] = max(1, round(options.cpu_s / (end["cpu_s"] / 20)))
        sys.stderr.write(f"{optimizer}: {steps_of[optimizer]} steps in {options.cpu_s:g} CPU s\n")
    found: dict[str, list[Mapping[str, Any]]] = {way: [] for way in options.ways}
    for seed in options.seeds:
        for way in options.ways:
            end = _end(work | {"seed": seed}, way, steps=steps_of[way.split(":")[0]])
            sys.stderr.write(f"seed {seed}, {way}: loss {end['loss']:.5f}, {end['cpu_s']:.1f} CPU s\n")
            found[way].append(end)
    return found


def _end(work: Mapping[str, Any], way: str, *, steps: int) -> Mapping[str, Any]:
    told = {"way": way, "samples": steps * GLOBAL_BATCH, "validation_steps": steps}
    return run_in_a_process(work | told)[-1]


def table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The best way first, by the median of its seeds."""
    lines = [f"{'way':34}{'loss':>10}{'least':>10}{'greatest':>10}{'samples':>10}{'CPU s':>8}"]
    for way, ends in sorted(found.items(), key=lambda each: statistics.median(end["loss"] for end in each[1])):
        losses, cpu_s = [end["loss"] for end in ends], statistics.median(end["cpu_s"] for end in ends)
        numbers = "".join(f"{each:10.5f}" for each in (statistics.median(losses), min(losses), max(losses)))
        lines.append(f"{way:34}{numbers}{ends[0]['samples']:10.0f}{cpu_s:8.1f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    before = machine()
    with tempfile.TemporaryDirectory(prefix="giornata-rates-") as name:
        found = measure(options, Path(name))
    print(table(found))
    conclude({"benchmark": "rates", "machine": before, **vars(options), "found": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
