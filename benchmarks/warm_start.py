"""How much sooner a second job on the same base begins than a first one: `python -m benchmarks.warm_start`.

Drives a real engine through its pipe, as an agent does. *Cold* is the time from the start of the process to the first
step of its first job; *warm* is the time from the start message of the second job, on other pictures and with another
seed, to its first step. Prints a table, then one JSON line. The target is warm / cold of 0.1 or less.

Both times are of one process on one machine in one run, so that only the ratio is worth comparing elsewhere. Without
--model it builds the tiny model of the tests: what is cold then is mostly the import of torch, not the weights.
"""

import argparse
import functools
import hashlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from giornata.agent.attempt.events import EngineEnded, EngineMessage, Event
from giornata.agent.engines.engine_process import EngineProcess
from giornata.agent.engines.engines import engine_environment
from giornata.protocol.node.pipe import Done, Failed, InputFile, Progress, Start

SUBJECTS = ("teal-heart", "two-tone-house")
PICTURES = 4
PATIENCE_S = 1800.0
TARGET = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One engine's two jobs, in seconds. `load_s` is the part of `cold_s` after the engine's hello."""

    cold_s: float
    load_s: float
    warm_s: float

    @property
    def ratio(self) -> float:
        return self.warm_s / self.cold_s


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="hub id or folder of an SDXL model; default: the tiny one")
    parser.add_argument("--variant", help="variant of the weight files, such as fp16")
    parser.add_argument("--resolution", type=int, default=64, help="side of the square, in pixels")
    parser.add_argument("--precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=3)
    return parser.parse_args(arguments)


def module(name: str, *arguments: str) -> None:
    """Run one of the project's own programs."""
    subprocess.run([sys.executable, "-m", name, *arguments], check=True, capture_output=True)


def pictures(directory: Path, subject: str, size_px: int) -> tuple[InputFile, ...]:
    module(
        "giornata.diffusion.tiny.drawings", subject, str(directory), "--count", str(PICTURES), "--size", str(size_px)
    )
    return tuple(
        InputFile(path=path, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), name=path.name)
        for path in sorted(directory.glob("*.png"))
    )


def spec(options: argparse.Namespace, model: str, *, seed: int) -> dict[str, object]:
    return {
        "pretrained_model_name_or_path": model,
        "variant": options.variant,
        "dataset": "ds_0",
        "instance_prompt": "a drawing of sks",
        "resolution": options.resolution,
        "mixed_precision": options.precision,
        "max_train_steps": 2,
        "seed": seed,
    }


def first_step_s(engine: EngineProcess, events: "queue.SimpleQueue[Event]", start: Start, since_s: float) -> float:
    """Run the job to its end. Returns the seconds from `since_s` to its first step."""
    engine.attach(start.attempt, events.put)
    engine.send(start)
    stepped_s = None
    while True:
        event = events.get(timeout=PATIENCE_S)
        match event:
            case EngineMessage(message=Progress()) if stepped_s is None:
                stepped_s = time.monotonic() - since_s
            case EngineMessage(message=Done()) if stepped_s is not None:
                return stepped_s
            case EngineMessage(message=Failed() as failed):
                sys.exit(f"the job failed: {failed.reason}: {failed.message}")
            case EngineEnded():
                sys.exit("the engine ended:\n" + "\n".join(engine.tail))


def measure(options: argparse.Namespace, starts: tuple[Start, Start]) -> Timing:
    """Start an engine, run both jobs, end it."""
    command = (sys.executable, "-m", "giornata.engine", "--device", options.device, "--threads", str(options.threads))
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    began_s = time.monotonic()
    environment = engine_environment(os.environ, threads=options.threads)
    engine = EngineProcess(command, environment=environment, monotonic_s=time.monotonic)
    try:
        engine.await_hello(PATIENCE_S)
        ready_s = time.monotonic()
        cold_s = first_step_s(engine, events, starts[0], began_s)
        warm_s = first_step_s(engine, events, starts[1], time.monotonic())
    finally:
        engine.shut_down(5.0)
    return Timing(cold_s=cold_s, load_s=cold_s - (ready_s - began_s), warm_s=warm_s)


def jobs(
    options: argparse.Namespace, model: str, home: Path, inputs: list[tuple[InputFile, ...]]
) -> tuple[Start, Start]:
    made = []
    for number, each in enumerate(inputs):
        directory = Path(tempfile.mkdtemp(dir=home))
        job = functools.partial(
            Start, attempt=f"att_{number}", job=f"job_{number}", kind="train", directory=directory
        )
        made.append(job(spec=spec(options, model, seed=number), inputs=each))
    return made[0], made[1]


def table(timings: list[Timing]) -> str:
    rows = [f"{each.cold_s:10.2f} {each.load_s:12.2f} {each.warm_s:10.3f} {each.ratio:10.4f}" for each in timings]
    head = f"{'cold, s':>10} {'of it load':>12} {'warm, s':>10} {'ratio':>10}"
    return "\n".join([head, *rows])


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        model = options.model or str(home / "tiny")
        if options.model is None:
            module("giornata.diffusion.tiny.tiny_model", model)
        inputs = [pictures(home / subject, subject, options.resolution) for subject in SUBJECTS]
        timings = [measure(options, jobs(options, model, home, inputs)) for _ in range(options.repetitions)]
    ratios = [each.ratio for each in timings]
    middle = statistics.median(ratios)
    print(table(timings))
    print(f"median ratio {middle:.4f} ({min(ratios):.4f} to {max(ratios):.4f}); target {TARGET} or less")
    result = {
        "benchmark": "warm_start",
        "model": options.model or "tiny",
        "resolution": options.resolution,
        "device": options.device,
        "threads": options.threads,
        "repetitions": options.repetitions,
        "cold_s": [round(each.cold_s, 3) for each in timings],
        "load_s": [round(each.load_s, 3) for each in timings],
        "warm_s": [round(each.warm_s, 4) for each in timings],
        "ratio_median": round(middle, 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "met": middle <= TARGET,
    }
    print(json.dumps(result))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
