"""What the tests of the training workload share: a reporter that records, pictures, and starts."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from giornata.engine.workload import Stopped, Wish
from giornata.protocol.pipe import InputFile, ResumePoint, Start
from giornata.workloads.train.workload import TrainWorkload


@dataclass
class RecordingReporter:
    """The engine's side, in memory. `wishes` maps a number of finished steps to the wish given out after it."""

    wishes: dict[int, Wish] = field(default_factory=dict)
    wish_while_caching: Wish = Wish.GO_ON
    cache: dict[str, Path] = field(default_factory=dict)
    phases: list[tuple[str, int | None, int | None]] = field(default_factory=list)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    checkpoints: dict[int, Path] = field(default_factory=dict)
    checkpoint_bytes: dict[int, bytes] = field(default_factory=dict)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    notices: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    puts: list[str] = field(default_factory=list)

    def wish(self) -> Wish:
        if self.phases[-1][0] == "caching":
            return self.wish_while_caching
        return self.wishes.pop(max(self.metrics, default=0), Wish.GO_ON)

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        self.phases.append((name, done, total))

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        self.metrics[step] = metrics

    def checkpoint(self, step: int, path: Path, cost_s: float) -> None:
        self.checkpoints[step] = path
        self.checkpoint_bytes[step] = path.read_bytes()

    def artifact(self, name: str, path: Path, media_type: str = "application/octet-stream") -> None:
        self.artifacts[name] = path.read_bytes()

    def cache_get(self, key: str) -> Path | None:
        return self.cache.get(key)

    def cache_put(self, key: str, path: Path) -> None:
        self.puts.append(key)
        self.cache[key] = path

    def log(self, line: str) -> None:
        self.lines.append(line)

    def notice(self, name: str, data: dict[str, Any]) -> None:
        self.notices.append((name, data))


def draw_pictures(folder: Path, count: int, *, first: int = 0, role: str = "instance") -> list[InputFile]:
    """Pictures of different shapes, each a function of its number; every second has a caption of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(first, first + count):
        generator = np.random.default_rng(number)
        height, width = (64 + 7 * (number % 3), 70 + 5 * (number % 2))
        coarse = generator.integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
        path = folder / f"{role}-{number}.png"
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(path)
        caption = f'a "sks" toy, no {number} — ünï' if number % 2 else None
        files.append(input_file(path, role=role, caption=caption))
    return files


def input_file(path: Path, *, role: str = "instance", caption: str | None = None) -> InputFile:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return InputFile(role=role, path=path, sha256=sha256, name=path.name, caption=caption)


def moved(files: Sequence[InputFile], folder: Path) -> list[InputFile]:
    """The same pictures in another order, in another folder, under other names."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, file in enumerate(reversed(files)):
        path = folder / f"{number:03d}_{file.sha256[:4]}.bin"
        path.write_bytes(file.path.read_bytes())
        found.append(file.model_copy(update={"path": path, "name": f"renamed {number}.png"}))
    return found


@dataclass
class Studio:
    """Runs attempts at one job, each in a fresh directory."""

    root: Path
    spec: dict[str, Any]
    inputs: list[InputFile]
    attempts: int = 0

    def start(self, *, resume: ResumePoint | None = None, **changes: Any) -> Start:
        self.attempts += 1
        directory = self.root / f"attempt-{self.attempts}"
        directory.mkdir(parents=True)
        inputs = self.inputs if self.attempts % 2 else moved(self.inputs, directory / "inputs")
        fields = {"spec": self.spec, "inputs": tuple(inputs), "resume": resume, **changes}
        return Start(attempt=f"at_{self.attempts}", job="jb_1", kind="train", directory=directory, **fields)

    def run(
        self,
        reporter: RecordingReporter | None = None,
        *,
        workload: TrainWorkload | None = None,
        resume: ResumePoint | None = None,
        **changes: Any,
    ) -> RecordingReporter:
        """A whole attempt on a fresh workload, unless one is given. Swallows Stopped."""
        reporter = reporter or RecordingReporter()
        try:
            (workload or TrainWorkload(device="cpu")).run(self.start(resume=resume, **changes), reporter)
        except Stopped as stopped:
            reporter.lines.append(f"stopped at {stopped.step}")
        return reporter

    def resume_point(self, reporter: RecordingReporter, step: int) -> ResumePoint:
        """A checkpoint as another node would get it: the bytes announced, at another path."""
        path = self.root / f"downloaded-{self.attempts}-{step}.safetensors"
        path.write_bytes(reporter.checkpoint_bytes[step])
        return ResumePoint(step=step, path=path)


Spec = Callable[..., dict[str, Any]]


def spec_for(model: Path, **changes: Any) -> dict[str, Any]:
    """A job of 12 steps at 64 px with most things switched on that chance plays a part in."""
    return {
        "pretrained_model_name_or_path": str(model),
        "dataset": "ds_1",
        "instance_prompt": "a photo of a sks toy",
        "resolution": 64,
        "random_flip": True,
        "rank": 2,
        "max_train_steps": 12,
        "learning_rate": 1e-2,
        "mixed_precision": "no",
        "seed": 42,
        "checkpointing_steps": 1000,
        "output_dtype": "float32",
        **changes,
    }
