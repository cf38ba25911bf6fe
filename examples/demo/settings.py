"""The demo's numbers, its training jobs, and its output directory."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault, InvalidInput

NODES = 2
KILLS = 2
LEASE_S = 5.0
PRICE_USD_PER_HOUR = 0.20
PICTURES = 8
CLASS_PICTURES = 64
"""Captioned pictures of the shapes that the base model knows."""
SCORED_PICTURES = 24
"""Pictures of the subject, and of old prompts, that are scored for each LoRA and for the base model."""
CHECKPOINTS_PER_JOB = 8
TIMEOUT_S = 1800.0

SUBJECTS = {
    "two-tone-house": "a sks house",
    "teal-heart": "a sks heart",
    "magenta-crescent": "a sks crescent",
    "green-cactus": "a sks cactus",
    "striped-cube": "a sks cube",
    "orange-fish": "a sks fish",
}
"""Subjects that giornata.diffusion.tiny.drawings draws, and the prompt that each is trained with."""

# Attention layers alone can learn a heart. A house of two colors needs the other layers, too.
TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "conv1", "conv2")

OLD_PROMPTS = ("a red circle on a white background", "a yellow cross on a black background")
"""Prompts that the base model follows. The sheet shows that each LoRA still follows them."""

MARK_FILE = ".giornata-demo"
OWN_PATHS = ("data", "logs", "model", "pictures", "loras", "grid.png", "learned.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The number of jobs and steps, and every path below the output directory."""

    out: Path
    jobs: int
    steps: int

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subject of each job, which is also the job's name."""
        return tuple(SUBJECTS)[: self.jobs]

    @property
    def data(self) -> Path:
        """The data directory of `giornata up`."""
        return self.out / "data"

    @property
    def log(self) -> Path:
        """The log of `giornata up`. The logs of its nodes lie in `data/logs`."""
        return self.out / "logs" / "up.log"

    @property
    def model(self) -> Path:
        """The folder of the small SDXL that draws shapes."""
        return self.out / "model"

    @property
    def grid(self) -> Path:
        """The sheet with pictures of the base model and of each LoRA."""
        return self.out / "grid.png"

    @property
    def scores(self) -> Path:
        """The scores of each LoRA and of the base model, as JSON."""
        return self.out / "learned.json"

    @property
    def class_pictures(self) -> Path:
        """The folder of shapes that the base model knows, and that every LoRA must keep."""
        return self.pictures("shapes")

    def pictures(self, subject: str) -> Path:
        """The training folder of one subject."""
        return self.out / "pictures" / subject

    def loras(self, name: str) -> Path:
        """The folder for the files of one job."""
        return self.out / "loras" / name

    def spec(self, subject: str, dataset: str, class_dataset: str) -> dict[str, Any]:
        """Return the training job of a subject. The fixed seed makes a second job repeat the first one's work."""
        return {
            "pretrained_model_name_or_path": str(self.model),
            "dataset": dataset,
            "instance_prompt": SUBJECTS[subject],
            "resolution": 64,
            "center_crop": True,
            "rank": 16,
            "target_modules": list(TARGETS),
            "learning_rate": 2e-3,
            "lr_scheduler": "cosine",
            # 300 steps are fewer than Adam averages over by default. With 0.999, or twice the rate, colors hung on
            # how a processor rounds: docs/benchmark-log.md.
            "adam_beta2": 0.99,
            "train_batch_size": 4,
            "with_prior_preservation": True,
            "class_dataset": class_dataset,
            "class_prompt": "a shape",
            "prior_loss_weight": 0.5,
            "snr_gamma": 5.0,
            "max_train_steps": self.steps,
            "checkpointing_steps": max(1, self.steps // CHECKPOINTS_PER_JOB),
            "mixed_precision": "no",
            "output_name": subject,
            "seed": 20 + tuple(SUBJECTS).index(subject),
        }


def prepare(settings: DemoSettings) -> None:
    """Make the output directory, and delete the files of an earlier demo.

    Raises InvalidInput when the directory holds other files, or when another demo still runs in it.
    """
    out = settings.out
    if fault := _fault_of(settings):
        raise InvalidInput([fault])
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK_FILE).write_text("made by: python -m examples.demo\n")
        for path in (out / name for name in OWN_PATHS):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for folder in (settings.data, settings.log.parent):
            folder.mkdir()
    except OSError as error:
        raise InvalidInput([_fault(f"cannot write to {error.filename or out}: {error.strerror}")]) from None


def _fault_of(settings: DemoSettings) -> Fault | None:
    out = settings.out
    if ":" in str(out):
        return _fault(f"{out} has a colon in it")
    if out.exists() and not out.is_dir():
        return _fault(f"{out} is not a directory")
    try:
        if out.is_dir() and any(out.iterdir()) and not (out / MARK_FILE).is_file():
            return _fault(f"{out} holds files that are not a demo's")
    except OSError as error:
        return _fault(f"cannot read {out}: {error.strerror}")
    pid = _server_pid(settings.data)
    if pid is not None and _is_giornata(pid):
        return _fault(f"another demo runs in {out} (process {pid})")
    return None


def _fault(message: str) -> Fault:
    return Fault(where="--out", message=message, hint="name another directory")


def _server_pid(data: Path) -> int | None:
    try:
        return int(json.loads((data / "server.json").read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_giornata(pid: int) -> bool:
    """Return whether the process exists and is Giornata: the system gives the numbers of ended processes again."""
    try:
        os.kill(pid, 0)
        return b"giornata" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except ProcessLookupError:
        return False
    except OSError:
        return True
