"""What pre-training costs, and where: `python -m benchmarks.pretrain`.

Three parts (--parts), each way a process of its own, one way after the other and all again in every round, so that
ratios are of runs under like conditions:

modes     A trainer that is fed in five ways: `loader`, a torch DataLoader in front of a trainer that encodes before
          each step (what the published system calls its baseline), and this project's graph: `colocated`, `offline`,
          `hybrid` (latents read, text encoded beside), `online`. Told are images/s, how long the trainer waits for
          rows, and CPU milliseconds of an image: in the trainer's process, and in all the others that work for it (of
          Ray: its tasks and actors, by the raylet's children). The first steps and the last ones are left out.
steps     Steps on synthetic latents: baseline, then each method on top of the one before; images/s and MFU. On CUDA
          by the clock against the data sheet's bf16; on a CPU by its seconds against its own matrix products.
encoders  VAE and text towers by themselves, as an encoder runs them.

On an H100 or H200 (--device cuda --size sd2, the true shapes with random weights) the rates of steps and encoders go
into the plan of the whole schedule on 32 of them. --quick only shows that everything runs. Seconds of CPU are the
main figures on a shared machine. Prints tables, and one JSON line, which --json also writes to a file.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.rig import pretraining_feed, pretraining_steps
from benchmarks.rig.figures import conclude, machine, spread
from benchmarks.rig.pretraining_plan import gpu_of, planned
from benchmarks.rig.pretraining_sizes import SIZES, config_of, encoder_flops, heavy_encoders
from benchmarks.rig.pretraining_table import modes_summary, modes_table, plan_table, steps_summary, steps_table
from giornata.pretrain.training.models import flops_per_picture

MODES = ("loader", "colocated", "offline", "hybrid", "online")
ON_ONE_GPU = ("loader", "colocated", "offline")
PARTS = ("modes", "steps", "encoders")
COUNTS = {"modes": (5, 20), "steps": (3, 10), "encoders": (1, 4)}
"""Steps that warm up, and those that count."""
QUICK = {"modes": (1, 2), "steps": (1, 2), "encoders": (1, 1)}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--ways", nargs="+", choices=MODES, help="of the modes; on CUDA those that need one GPU")
    parser.add_argument("--methods", nargs="+", choices=tuple(pretraining_steps.STEPS), help="of the steps")
    parser.add_argument("--encoders", choices=("own", "as-sd2"), default="as-sd2", help="how heavy, for size tiny")
    parser.add_argument("--resolutions", type=int, nargs="+", help="of the size, in pixels")
    parser.add_argument("--rows", type=int, help="of a step, instead of the size's")
    parser.add_argument("--steps", type=int, help="that count, of every part; else 20, 10 and 4")
    parser.add_argument("--precision", choices=("no", "bf16"), help="of the steps; on CUDA bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="of the DataLoader")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    options.ways = options.ways or (ON_ONE_GPU if options.device == "cuda" else MODES)
    options.methods = options.methods or tuple(pretraining_steps.STEPS)
    options.resolutions = options.resolutions or list(SIZES[options.size].rows)
    options.precision = options.precision or ("bf16" if options.device == "cuda" else "no")
    options.rounds = 1 if options.quick else options.rounds
    return options


def child(script: Any, work: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """What a process says in its last line. Kernels that it compiles stay for the next round's."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(work["threads"]),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "PYTHONHASHSEED": "0",
    }
    command = [sys.executable, "-m", script.__name__, json.dumps(work)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ran.returncode:
        sys.exit(f"{work.get('way') or work.get('what')} ended with {ran.returncode}:\n{ran.stderr[-3000:]}")
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return said


class PretrainBenchmark:
    """All that the parts share."""

    def __init__(self, options: argparse.Namespace, home: Path) -> None:
        self._options, self._home = options, home
        heavy = options.size == "tiny" and options.encoders == "as-sd2"
        model = str(heavy_encoders(home / "model")) if heavy else None
        self._work = {name: getattr(options, name) for name in ("size", "device", "precision", "threads", "workers")}
        self._work |= {"folder": str(home), "model": model}

    def work(self, part: str, resolution: int, **more: Any) -> dict[str, Any]:
        """What a process of this part is told."""
        warm, steps = (QUICK if self._options.quick else COUNTS)[part]
        steps = self._options.steps or steps
        rows = self._options.rows or SIZES[self._options.size].rows[resolution]
        return {**self._work, "resolution": resolution, "rows": rows, "warm": warm, "steps": steps, **more}

    def modes(self, resolution: int) -> dict[str, Any]:
        """The modes' part."""
        from giornata.pretrain.ray_train.cluster import connected

        options = self._options
        self._data(resolution)
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in options.ways}
        failed: dict[str, str] = {}
        # Ray's workers are 15 nicer than who starts it, which on a machine with other work means that they starve.
        os.environ.setdefault("RAY_worker_niceness", "0")
        with connected(None):
            import ray

            ray_of = {"address": ray.get_runtime_context().gcs_address, "raylet": _raylet()}
            for number in range(options.rounds):
                for way in list(found):
                    work = self.work("modes", resolution, way=way, **ray_of)
                    try:
                        found[way].append(child(pretraining_feed, work, self._home / "kernels"))
                    except SystemExit as error:  # without memory perhaps: the others are still worth something
                        failed[way] = str(error.code)
                        del found[way]
                        sys.stderr.write(f"{failed[way]}\n")
                        continue
                    _say(number, resolution, way, found[way][-1])
        config = config_of(self.work("modes", resolution, mode="online", samples=1))
        flops = {
            "training": flops_per_picture(config.model.architecture, resolution),
            **encoder_flops(config),
        }
        return {"flops": flops, "failed": failed, **modes_summary(found, over=next(iter(found)))}

    def _data(self, resolution: int) -> None:
        from benchmarks.rig.pretraining_data import drawn, encoded

        size = SIZES[self._options.size]
        config = config_of(self.work("modes", resolution, mode="offline", samples=1))
        if not (self._home / "shards").exists():
            drawn(config, self._home, rows=128 if self._options.quick else size.sources, side_px=size.side_px)
        if {"offline", "hybrid"} & set(self._options.ways):
            encoded(config)

    def steps(self, resolution: int) -> dict[str, Any]:
        """The steps' part."""
        options = self._options
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in options.methods}
        for number in range(options.rounds):
            for way in options.methods:
                work = self.work("steps", resolution, what=way)
                found[way].append(child(pretraining_steps, work, self._home / "kernels"))
                medians = {name: statistics.median(found[way][-1][name]) for name in ("wall_s", "cpu_s")}
                _say(number, resolution, way, medians)
        rows = self.work("steps", resolution)["rows"]
        return steps_summary(found, rows=rows, over=options.methods[0])

    def encoders(self, resolution: int) -> dict[str, Any]:
        """The encoders' part: images/s and captions/s of one device, and CPU ms of each."""
        runs = [
            child(pretraining_steps, self.work("encoders", resolution, what=pretraining_steps.ENCODERS), self._home)
            for _ in range(self._options.rounds)
        ]
        rows = self.work("encoders", resolution)["rows"]
        found: dict[str, Any] = {"device": runs[0]["device"]}
        for half in ("vae", "text"):
            found[half] = {
                "per_s": spread([rows / statistics.median(run[half]["wall_s"]) for run in runs]),
                "cpu_ms": spread([1000 * statistics.median(run[half]["cpu_s"]) / rows for run in runs], 3),
            }
        return found


def _say(number: int, resolution: int, way: str, told: Mapping[str, Any]) -> None:
    short = {name: float(f"{value:.4g}") for name, value in told.items()}
    sys.stderr.write(f"round {number + 1}, {resolution} px: {way}: {short}\n")


def _raylet() -> int:
    """The pid of the raylet that this process started."""
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            name = (directory / "cmdline").read_bytes().split(b"\0")[0]
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it has just ended
        if name.endswith(b"/raylet") and parent == os.getpid():
            return int(directory.name)
    raise RuntimeError("Ray was started, and no raylet of this process is there")


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    began_s = time.monotonic()
    try:
        yield
    finally:
        seconds[part] = round(seconds.get(part, 0.0) + time.monotonic() - began_s, 1)


def measure(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """By part and resolution."""
    bench, seconds = PretrainBenchmark(options, home), dict[str, float]()
    found: dict[str, Any] = {part: {} for part in options.parts}
    for part in options.parts:
        for resolution in options.resolutions:
            with _timed(seconds, part):
                found[part][resolution] = getattr(bench, part)(resolution)
    return {**found, "seconds": seconds}


def plan_of(found: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """What the measured rates come to; None where there are none, or not of a GPU that can be planned with."""
    steps, encoders = found.get("steps"), found.get("encoders")
    if not steps or not encoders:
        return None
    gpu = gpu_of(next(iter(encoders.values()))["device"])
    if gpu is None:
        return None
    training = {
        resolution: max(way["images_per_s"]["median"] for way in told["ways"].values())
        for resolution, told in steps.items()
    }
    encoding = {
        resolution: 1 / sum(1 / told[half]["per_s"]["median"] for half in ("vae", "text"))
        for resolution, told in encoders.items()
    }
    return planned(gpu, training, encoding)


def main(arguments: Sequence[str] | None = None) -> int:
    options, before = options_of(arguments), machine()
    with tempfile.TemporaryDirectory(prefix="giornata-pretrain-") as name:
        found = measure(options, Path(name))
    plan = plan_of(found)
    for resolution, told in found.get("modes", {}).items():
        print(modes_table(resolution, told))
    for resolution, told in found.get("steps", {}).items():
        print(steps_table(resolution, told))
    for resolution, told in found.get("encoders", {}).items():
        print(f"encoders at {resolution} px: {json.dumps(told)}")
    print("no plan: steps and encoders were not measured on an H100 or H200" if plan is None else plan_table(plan))
    given = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    result = {"benchmark": "pretrain", "machine": before, **given, **{f"{part}_found": found[part] for part in found}}
    result["plan"] = plan
    if options.json:
        options.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
    conclude(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
