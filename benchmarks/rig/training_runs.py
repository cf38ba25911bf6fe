"""Whole training runs as processes: jobs on engines of ours, and the example script of diffusers."""

import os
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.rig.processes import usage_of
from giornata.agent.attempt.events import EngineEnded, EngineMessage, Event
from giornata.agent.engines.engine_process import EngineProcess
from giornata.agent.engines.engines import engine_environment
from giornata.protocol.node.pipe import Done, Failed, InputFile, Progress, Start

PATIENCE_S = 3600.0
WARM_UP_STEPS = 5
"""Steps of a job that do not count in its time per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What every way has to do: `jobs` jobs of `steps` steps of `batch` pictures each."""

    model: str
    pictures: tuple[InputFile, ...]
    resolution: int
    precision: str
    rank: int
    batch: int
    steps: int
    jobs: int
    device: str
    threads: int

    @property
    def images(self) -> int:
        return self.jobs * self.steps * self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTraining:
    """What one way took for all of the work. `step_s` is the median of a step, where steps were told, in which
    `images_at_once` went through the model; `peak_bytes` the most memory that its processes held at a time (resident
    on a CPU, of the device on CUDA). `engines` is how many ran side by side."""

    wall_s: float
    images: int
    step_s: float | None
    images_at_once: int
    peak_bytes: int | None
    engines: int = 1


class Session:
    """One engine's life. It trains up to `places` jobs in one batch. `source` is the folder of another version's
    package; None: of this one."""

    def __init__(self, work: Work, home: Path, *, places: int = 1, source: Path | None = None) -> None:
        self._work, self._home, self._kind = work, home, "joint" if places > 1 else "solo"
        command = (
            *(sys.executable, "-m", "giornata.engine", "--device", work.device),
            *("--threads", str(work.threads), "--places", str(places)),
        )
        environment = engine_environment(os.environ, threads=work.threads)
        if source is not None:
            environment["PYTHONPATH"] = str(source)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._engine = EngineProcess(command, environment=environment, monotonic_s=time.monotonic)
        self._engine.await_hello(PATIENCE_S)
        self.step_s: list[float] = []
        self.cpu_s_at: dict[int, float] = {}
        """CPU seconds of the engine so far, when it told of each step of the job that it trains."""
        self.metrics: dict[str, float] = {}
        self.peak_bytes = 0

    def train(self, *numbers: int) -> None:
        """These jobs, all given at once, from their start to their files."""
        self.cpu_s_at.clear()
        for number in numbers:
            directory = Path(tempfile.mkdtemp(dir=self._home))
            spec = spec_of(self._work, seed=number)
            names = {"attempt": f"att_{number}", "job": f"job_{number}", "kind": "train"}
            self._engine.attach(names["attempt"], self._events.put)
            self._engine.send(
                Start(**names, joint_key="of all", directory=directory, spec=spec, inputs=self._work.pictures)
            )
        left = len(numbers)
        while left:
            left -= self._ended(self._events.get(timeout=PATIENCE_S))

    def end(self) -> None:
        """Stop the engine."""
        self._engine.shut_down(10.0)

    def _ended(self, event: Event) -> bool:
        match event:
            case EngineMessage(message=Progress() as progress):
                self.cpu_s_at[progress.step] = usage_of(self._engine.pid).cpu_s
                if progress.step > WARM_UP_STEPS:
                    self.step_s.append(progress.metrics["step_ms"] / 1000.0)
                self.metrics.update(progress.metrics)
            case EngineMessage(message=Done() as done):
                if (exactness := done.summary["exactness"])["class"] != self._kind:
                    sys.exit(f"the job was to be trained {self._kind}: {exactness['why']}")
                self.peak_bytes = max(self.peak_bytes, self._memory_bytes())
                return True
            case EngineMessage(message=Failed() as failed):
                sys.exit(f"the job failed: {failed.reason}: {failed.message}")
            case EngineEnded():
                sys.exit("the engine ended:\n" + "\n".join(self._engine.tail))
        return False

    def _memory_bytes(self) -> int:
        on_device = self.metrics.get("vram_peak_bytes")
        return int(on_device) if on_device is not None else peak_resident_bytes(self._engine.pid)


def spec_of(work: Work, *, seed: int) -> dict[str, Any]:
    """The spec of a job of ours; the options of the script are the same."""
    return {
        "pretrained_model_name_or_path": work.model,
        "dataset": "ds_0",
        "instance_prompt": "a drawing of sks",
        "resolution": work.resolution,
        "center_crop": True,
        "mixed_precision": work.precision,
        "rank": work.rank,
        "train_batch_size": work.batch,
        "max_train_steps": work.steps,
        "learning_rate": 1e-4,
        "checkpointing_steps": work.steps,
        "model_card": False,
        "seed": seed,
    }


def cold(work: Work, home: Path) -> MeasuredTraining:
    """An engine of its own for every job."""
    return _ours(work, home, engines=work.jobs)


def warm(work: Work, home: Path) -> MeasuredTraining:
    """One engine, one job after the other."""
    return _ours(work, home, engines=1)


def joint(work: Work, home: Path, *, places: int) -> MeasuredTraining:
    """One engine, `places` jobs in one batch at a time. At least as many jobs as that are done.

    The engine has two places at least: with one it would train a job as if alone, and not in a shared batch.
    """
    return _ours(_enough(work, places), home, engines=1, places=places, offered=max(2, places))


def one_batch(work: Work, home: Path, *, batches: int) -> MeasuredTraining:
    """The control of joint training: one engine, in which one job's batch holds what `batches` jobs' batches hold."""
    jobs = _enough(work, batches).jobs // batches
    return warm(replace(work, batch=work.batch * batches, jobs=jobs), home)


def side_by_side(work: Work, home: Path, *, engines: int) -> MeasuredTraining:
    """Several engines at the same time, each with its share of the jobs in one batch."""
    places = max(1, work.jobs // engines)
    began_s = time.monotonic()
    with ThreadPoolExecutor(engines) as pool:
        shares = [range(work.jobs)[engine::engines] for engine in range(engines)]
        sessions = list(pool.map(lambda share: _session(work, home, share, places, places), shares))
    return MeasuredTraining(
        wall_s=time.monotonic() - began_s,
        images=work.images,
        step_s=_median_step_s(sessions),
        images_at_once=work.batch * places * engines,
        peak_bytes=sum(session.peak_bytes for session in sessions),
        engines=engines,
    )


def _enough(work: Work, places: int) -> Work:
    """Jobs for full batches only."""
    return replace(work, jobs=-(-work.jobs // places) * places)


def _ours(work: Work, home: Path, *, engines: int, places: int = 1, offered: int = 1) -> MeasuredTraining:
    """`offered` is how many places an engine has, of which `places` are taken at a time."""
    began_s, numbers = time.monotonic(), range(work.jobs)
    sessions = [_session(work, home, numbers[engine::engines], places, offered) for engine in range(engines)]
    return MeasuredTraining(
        wall_s=time.monotonic() - began_s,
        images=work.images,
        step_s=_median_step_s(sessions),
        images_at_once=work.batch * places,
        peak_bytes=max(session.peak_bytes for session in sessions),
    )


def _median_step_s(sessions: Sequence[Session]) -> float | None:
    """None when no job had more steps than those that warm up."""
    steps_s = [each for session in sessions for each in session.step_s]
    return statistics.median(steps_s) if steps_s else None


def _session(work: Work, home: Path, numbers: Sequence[int], places: int, offered: int) -> Session:
    """An engine of `offered` places from its start to its end, with these jobs, `places` at a time."""
    session = Session(work, home, places=offered)
    try:
        for first in range(0, len(numbers), places):
            session.train(*numbers[first : first + places])
    finally:
        session.end()
    return session


def script(work: Work, home: Path, *, path: Path, python: str) -> MeasuredTraining:
    """The example script of diffusers, once for every job."""
    folder = work.pictures[0].path.parent
    began_s, step_s, peak_bytes = time.monotonic(), [], 0
    for number in range(work.jobs):
        told, peak = _watched([python, str(path), *_options(work, folder, home / f"script-{number}", seed=number)])
        step_s += _told_step_s(told)
        peak_bytes = max(peak_bytes, peak)
    wall_s = time.monotonic() - began_s
    return MeasuredTraining(
        wall_s=wall_s,
        images=work.images,
        step_s=statistics.median(step_s) if step_s else None,
        images_at_once=work.batch,
        peak_bytes=None if _on_cuda(work) else peak_bytes or None,
    )


def _on_cuda(work: Work) -> bool:
    """What the script holds of a device's memory it does not tell."""
    return work.device != "cpu" and Path("/dev/nvidiactl").exists()


def _options(work: Work, folder: Path, out: Path, *, seed: int) -> list[str]:
    given: dict[str, object] = {
        "pretrained_model_name_or_path": work.model,
        "instance_data_dir": folder,
        "instance_prompt": "a drawing of sks",
        "output_dir": out,
        "resolution": work.resolution,
        "mixed_precision": work.precision,
        "rank": work.rank,
        "train_batch_size": work.batch,
        "gradient_accumulation_steps": 1,
        "max_train_steps": work.steps,
        "learning_rate": 1e-4,
        "lr_scheduler": "constant",
        "lr_warmup_steps": 0,
        "checkpointing_steps": work.steps,
        "seed": seed,
    }
    return [*(f"--{name}={value}" for name, value in given.items()), "--center_crop"]


def _watched(command: Sequence[str]) -> tuple[str, int]:
    """What the process told, and the most memory that it held."""
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT, env=environment)
        peak = 0
        while process.poll() is None:
            peak = max(peak, peak_resident_bytes(process.pid))
            time.sleep(0.05)
        told.seek(0)
        text = told.read()
    if process.returncode:
        sys.exit(f"the script ended with {process.returncode}:\n{text[-3000:]}")
    return text, peak


def _told_step_s(text: str) -> list[float]:
    """Its progress bar's last word on the rate: `1.23s/it` or `34.5it/s`."""
    found = re.findall(r"Steps:.*?([\d.]+)(it/s|s/it)", text)
    return [float(value) if unit == "s/it" else 1 / float(value) for value, unit in found[-1:] if float(value) > 0]


def peak_resident_bytes(pid: int) -> int:
    """The most memory that a process has held so far; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
