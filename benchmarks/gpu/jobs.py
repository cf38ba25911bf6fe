"""Jobs of the trainer as the engine runs them, in this process, on a base that was built here."""

import hashlib
import itertools
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.gpu.base import Built, layout_of
from benchmarks.gpu.settings import GpuSettings
from benchmarks.rig.figures import spread
from giornata.protocol.node.pipe import InputFile, Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import AgentRequest, Outcome
from giornata.workloads.train.device.memory_budget import MemoryPlan, sizes_of
from giornata.workloads.train.workload import TrainWorkload

NAME = "random-sdxl"
"""No folder and no model of a hub: the base is built."""


@dataclass
class JobReporter:
    """The engine's side of a job: keeps what it tells."""

    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def agent_request(self) -> AgentRequest:
        return AgentRequest.GO_ON

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None: ...

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        self.metrics[step] = metrics

    def checkpoint(self, step: int, path: Path, cost_s: float) -> None: ...

    def artifact(self, name: str, path: Path, media_type: str = "application/octet-stream") -> None: ...

    def cache_get(self, key: str) -> Path | None:  # noqa: ARG002
        return None

    def cache_put(self, key: str, path: Path) -> None: ...

    def log(self, line: str) -> None: ...

    def notice(self, name: str, data: dict[str, Any]) -> None:
        self.notices.append(f"{name}: {data.get('message') or data}")


@dataclass
class SharedJobs:
    """Jobs that share a batch."""

    waiting: list[tuple[Start, JobReporter]]
    places: int = 1

    def next(self) -> tuple[Start, JobReporter] | None:
        return self.waiting.pop(0) if self.waiting else None

    def ended(self, start: Start, end: Outcome | Exception) -> None:  # noqa: ARG002
        if isinstance(end, Exception):
            raise end

    def offer(self, places: int) -> None:
        self.places = places


class BaseTrainer:
    """Trains jobs on one base. `step_ms` are those after the ones that warm up."""

    def __init__(self, settings: GpuSettings, home: Path) -> None:
        self._settings, self._home, self._numbers = settings, home, itertools.count()
        self.built = Built(layout_of(settings.model, home), settings.device)
        self._pictures = pictures(home / "pictures", settings.pictures, settings.resolution)
        self._workload = TrainWorkload(device=settings.device, load=self.built, places=settings.together)

    def drop(self) -> None:
        """Let the base go."""
        self.built.base = None
        del self._workload

    def spec(self, **changes: Any) -> TrainSpec:
        """A job of the benchmark: bf16, LoRA on the attention."""
        settings = self._settings
        return TrainSpec.model_validate(
            {
                "pretrained_model_name_or_path": NAME,
                "dataset": "ds_0",
                "instance_prompt": "a drawing of sks",
                "resolution": settings.resolution,
                "center_crop": True,
                "mixed_precision": "bf16",
                "rank": settings.rank,
                "max_train_steps": settings.warm + settings.steps,
                "checkpointing_steps": 10**6,
                "model_card": False,
                "compile": "off",
                "seed": 1,
                **changes,
            }
        )

    def alone(self, **changes: Any) -> dict[str, Any]:
        """One job, as a GPU of its own trains it."""
        listener, spec = JobReporter(), self.spec(**changes)
        self._workload.run(self._start(spec), listener)
        return self._told([listener], spec)

    def together(self, jobs: int, **changes: Any) -> dict[str, Any]:
        """So many jobs in one batch. Raises RuntimeError where the device has no room for them all."""
        specs = [self.spec(**changes, **{"seed": number}) for number in range(1, jobs + 1)]
        listeners = [JobReporter() for _ in specs]
        session = SharedJobs(waiting=[(self._start(spec), each) for spec, each in zip(specs, listeners, strict=True)])
        self._workload.run_many(session)
        if session.places < jobs:
            raise RuntimeError(f"the device has room for {session.places} of {jobs} jobs")
        return self._told(listeners, specs[0])

    def expected_bytes(self, spec: TrainSpec) -> int:
        """What the tensors of the job are expected to take at their most, by fit.py; the base was built before."""
        if self.built.base is None:
            raise RuntimeError("no base was built yet")
        return sizes_of(self.built.base, spec).training_bytes(MemoryPlan.asked_for(spec))

    def _start(self, spec: TrainSpec) -> Start:
        number = next(self._numbers)
        directory = Path(tempfile.mkdtemp(dir=self._home, prefix=f"job-{number}-"))
        values = spec.model_dump(mode="json")
        names = {"attempt": f"att_{number}", "job": f"job_{number}", "kind": "train"}
        return Start(**names, directory=directory, spec=values, inputs=self._pictures)

    def _told(self, listeners: Sequence[JobReporter], spec: TrainSpec) -> dict[str, Any]:
        counted = [
            told for listener in listeners for step, told in listener.metrics.items() if step > self._settings.warm
        ]
        step_ms = statistics.median(each["step_ms"] for each in counted)
        peaks = [each["vram_peak_bytes"] for each in counted if "vram_peak_bytes" in each]
        return {
            "step_ms": step_ms,
            "images_per_s": 1000 * len(listeners) * spec.train_batch_size / step_ms,
            "peak_bytes": int(max(peaks)) if peaks else None,
            "notices": sorted({notice for listener in listeners for notice in listener.notices}),
        }


def pictures(folder: Path, count: int, side: int) -> tuple[InputFile, ...]:
    """Noise, as large as the job wants it."""
    folder.mkdir(parents=True)
    found = []
    for number in range(count):
        path = folder / f"{number}.png"
        pixels_HWC = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels_HWC).save(path, compress_level=1)
        found.append(InputFile(path=path, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), name=path.name))
    return tuple(found)


def spreads(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the repetitions of a way: medians with least and greatest; the most memory of any; what was noticed."""
    peaks = [run["peak_bytes"] for run in runs if run["peak_bytes"] is not None]
    return {
        "repetitions": len(runs),
        "step_ms": spread([run["step_ms"] for run in runs], 3),
        "images_per_s": spread([run["images_per_s"] for run in runs], 3),
        "peak_mib": round(max(peaks) / 2**20) if peaks else None,
        "notices": sorted({notice for run in runs for notice in run["notices"]}),
    }
