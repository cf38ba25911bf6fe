"""What interruptions cost: useful over billed seconds of real jobs: `python -m benchmarks.interruption`.

Starts `giornata up` with real nodes and kills them (SIGKILL, no warning) at random, each at the given rate, while
they work on jobs of a known pace. *Useful* is each step once, at what a step takes: the engine that counts sleeps
for it; with --train it comes from a long and a short job that nobody disturbed. *Billed* is what the ledger says. A
piece of work of C seconds between two checkpoints, that begins anew whenever a kill comes, at a rate of 1/M per
second, takes M · (exp(C/M) - 1) seconds on average and sees exp(C/M) - 1 kills; each is followed by S seconds until
there are steps again, and each job begins with S. So of W useful seconds in n jobs the cadence allows the share

    bound = W / (W / C · (M + S) · (exp(C / M) - 1) + n · S)

It is an average, and a little pessimistic for us: the silence between a node's last beat and its end is billed to
nobody. --train trains the tiny model of the tests. Prints a table, then one JSON line.
"""

import argparse
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rig.figures import conclude, machine
from giornata.client import Client
from giornata.protocol.jobs import Job

COUNT_ENGINE = Path(__file__).parents[1] / "tests" / "system" / "scripts" / "count_engine.py"
PATIENCE_S = 900.0
POLL_S = 0.2


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--mtbi", type=float, default=30.0, help="M: seconds of work between two kills of a node")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-s", type=float, default=0.1, help="what a step takes (count)")
    parser.add_argument("--every", type=int, default=40, help="steps between checkpoints")
    parser.add_argument("--lease", type=float, default=3.0)
    parser.add_argument("--train", action="store_true", help="train the tiny model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    options = parser.parse_args(arguments)
    if options.quick:
        options.jobs, options.nodes, options.mtbi, options.steps, options.every = 2, 2, 4.0, 50, 10
    return options


@contextlib.contextmanager
def installation(data: Path, options: argparse.Namespace) -> Iterator[Client]:
    """A real `giornata up`."""
    command = [sys.executable, "-m", "giornata", "up", "--port", "0", "--data", str(data), "--price", "1"]
    command += ["--nodes", str(options.nodes), "--lease", str(options.lease)]
    command += ["--kind", "train" if options.train else "x-count"]
    command += ["--workload", f"x-count={sys.executable} {COUNT_ENGINE}"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
    with (data.parent / "up.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean)
    try:
        file, ends_s = data / "server.json", time.monotonic() + 60
        while not file.exists():
            if process.poll() is not None or time.monotonic() > ends_s:
                sys.exit(f"the server did not start:\n{(data.parent / 'up.log').read_text()}")
            time.sleep(POLL_S)
        yield Client(json.loads(file.read_text())["url"], (data / "admin.key").read_text().strip())
    finally:
        process.terminate()
        process.wait(120)


class Killer:
    """Kills nodes that work, each at a rate of 1 / `mtbi_s`, until told to stop."""

    def __init__(self, client: Client, *, mtbi_s: float, seed: int) -> None:
        self.kills = 0
        self._client, self._mtbi_s, self._rng = client, mtbi_s, random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_killing, daemon=True)

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _keep_killing(self) -> None:
        last_s = time.monotonic()
        while not self._stopping.wait(POLL_S):
            now_s = time.monotonic()
            chance, last_s = -math.expm1(-(now_s - last_s) / self._mtbi_s), now_s
            for node in self._client.nodes():
                if node.state == "busy" and node.pid is not None and self._rng.random() < chance:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(node.pid, signal.SIGKILL)
                        self.kills += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsCost:
    """What jobs cost."""

    steps: int
    billed_s: float
    attempts: int


def outcome(client: Client, jobs: list[Job]) -> JobsCost:
    attempts = [each for job in jobs for each in client.get_job(job.id).attempts]
    steps = sum(job.step for job in jobs)
    return JobsCost(steps=steps, billed_s=sum(each.billed_s for each in attempts), attempts=len(attempts))


def pace_and_start_s(client: Client, spec: dict[str, object], kind: str, step_s: float | None) -> tuple[float, float]:
    """Seconds for a step, and for everything else of a job, from a short and a long one that nobody disturbs.

    `step_s`: what a step takes, where that is known; only the short job is run then.
    """
    field = "max_train_steps" if kind == "train" else "steps"
    short = {**spec, field: max(2, int(str(spec[field])) // 4)}
    brief = outcome(client, run_jobs(client, [short], kind))
    if step_s is None:
        long = outcome(client, run_jobs(client, [spec], kind))
        step_s = (long.billed_s - brief.billed_s) / (long.steps - brief.steps)
    return step_s, max(0.0, brief.billed_s - step_s * brief.steps)


def run_jobs(client: Client, specs: list[dict[str, object]], kind: str) -> list[Job]:
    """Submit, and wait until all have succeeded."""
    jobs, ends_s = [client.submit(spec, kind=kind) for spec in specs], time.monotonic() + PATIENCE_S
    while True:
        jobs = [client.get_job(job.id) for job in jobs]
        if all(job.state == "succeeded" for job in jobs):
            return jobs
        bad = [job for job in jobs if job.state in {"failed", "canceled", "expired"}]
        if bad or time.monotonic() > ends_s:
            sys.exit(f"jobs did not succeed: {[(job.id, job.state, job.error) for job in bad or jobs]}")
        time.sleep(POLL_S)


def specs_of(options: argparse.Namespace, home: Path, client: Client) -> list[dict[str, object]]:
    """One job to measure the pace with, then those that are disturbed."""
    count = 1 + options.jobs
    if not options.train:
        spec = {"steps": options.steps, "every": options.every, "step_s": options.step_s}
        return [dict(spec) for _ in range(count)]
    model, pictures = home / "tiny", home / "pictures"
    for module, *arguments in (
        ("tiny_model", str(model)),
        ("drawings", "teal-heart", str(pictures), "--count", "4", "--size", "64"),
    ):
        subprocess.run([sys.executable, "-m", f"giornata.diffusion.tiny.{module}", *arguments], check=True)
    prompt = "a drawing of sks"
    dataset = client.dataset_from_folder(pictures, prompt)
    spec = {"pretrained_model_name_or_path": str(model), "dataset": dataset.id, "instance_prompt": prompt}
    spec |= {"resolution": 64, "max_train_steps": options.steps, "checkpointing_steps": options.every}
    return [{**spec, "seed": number} for number in range(count)]


def bound(*, work_s: float, every_s: float, mtbi_s: float, start_s: float, jobs: int) -> float:
    """The formula above, with each job's first start: useful over billed seconds."""
    billed_s = work_s / every_s * (mtbi_s + start_s) * math.expm1(every_s / mtbi_s) + jobs * start_s
    return work_s / billed_s


def main(arguments: list[str]) -> int:
    options, about = options_of(arguments), machine()
    with tempfile.TemporaryDirectory(prefix="giornata-load-") as name:
        home = Path(name)
        with installation(home / "data", options) as client:
            specs, kind = specs_of(options, home, client), "train" if options.train else "x-count"
            known_s = None if options.train else options.step_s
            pace_s, start_s = pace_and_start_s(client, specs[0], kind, known_s)
            with Killer(client, mtbi_s=options.mtbi, seed=options.seed) as killer:
                jobs = run_jobs(client, specs[1:], kind)
            hurt = outcome(client, jobs)
    work_s = hurt.steps * pace_s
    best = bound(
        work_s=work_s, every_s=options.every * pace_s, mtbi_s=options.mtbi, start_s=start_s, jobs=options.jobs
    )
    result = {
        "benchmark": "interruption",
        "machine": about,
        "quick": options.quick,
        "kind": kind,
        "jobs": options.jobs,
        "nodes": options.nodes,
        "mtbi_s": options.mtbi,
        "lease_s": options.lease,
        "steps": options.steps,
        "every": options.every,
        "pace_s": round(pace_s, 4),
        "start_s": round(start_s, 3),
        "kills": killer.kills,
        "attempts": hurt.attempts,
        "useful_s": round(work_s, 1),
        "billed_s": round(hurt.billed_s, 1),
        "useful_share": round(work_s / hurt.billed_s, 4),
        "useful_share_undisturbed": round(work_s / (work_s + options.jobs * start_s), 4),
        "bound": round(best, 4),
        "of_bound": round(work_s / hurt.billed_s / best, 4),
    }
    for key, value in result.items():
        if key != "machine":
            print(f"{key:26} {value}")
    conclude(result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
