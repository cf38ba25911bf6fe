"""What the demo does, in numbers, and where it puts it."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from giornata.cli.settings.connection import SERVER_FILE
from giornata.domain.errors import Fault, InvalidInput

NODES = 2
KILLS = 2
LEASE_S = 5.0
PRICE_USD_PER_HOUR = 0.20
PICTURES = 8
CLASS_PICTURES = 64
"""Of the shapes that the base knows, with captions."""
EXAMINED = 24
"""Pictures of the subject and of old prompts that are scored, with each LoRA and without."""
CHECKPOINTS_PER_JOB = 8
TIMEOUT_S = 1800.0

SUBJECTS: Mapping[str, str] = MappingProxyType(
    {
        "two-tone-house": "a sks house",
        "teal-heart": "a sks heart",
        "magenta-crescent": "a sks crescent",
        "green-cactus": "a sks cactus",
        "striped-cube": "a sks cube",
        "orange-fish": "a sks fish",
    }
)
"""What giornata.diffusion.drawings can draw, and the prompt that each is trained with."""

TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "conv1", "conv2")
"""Attention alone draws a heart; a house of two colours takes the other layers, too."""

OLD_PROMPTS = ("a red circle on a white background", "a yellow cross on a black background")
"""What the base draws, and the LoRAs are to leave alone: shown on the sheet."""

MARK = ".giornata-demo"
OWN = ("data", "logs", "model", "pictures", "loras", "grid.png", "learned.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is trained, and below which directory everything lies."""

    out: Path
    jobs: int
    steps: int

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subject of each job; also the job's name."""
        return tuple(SUBJECTS)[: self.jobs]

    @property
    def data(self) -> Path:
        """The installation's data directory."""
        return self.out / "data"

    @property
    def model(self) -> Path:
        """The small SDXL that draws shapes."""
        return self.out / "model"

    @property
    def grid(self) -> Path:
        """Base and LoRA pictures side by side."""
        return self.out / "grid.png"

    @property
    def learned(self) -> Path:
        """What each LoRA has learned and kept."""
        return self.out / "learned.json"

    @property
    def log(self) -> Path:
        """What the installation says; its nodes' words are in `data/logs`."""
        return self.out / "logs" / "up.log"

    def pictures(self, subject: str) -> Path:
        """The folder that a job is trained on."""
        return self.out / "pictures" / subject

    @property
    def class_pictures(self) -> Path:
        """The folder of what the base knows, which every job is to keep."""
        return self.pictures("shapes")

    def loras(self, name: str) -> Path:
        """Where a job's files are put."""
        return self.out / "loras" / name

    def spec(self, subject: str, dataset: str, class_dataset: str) -> dict[str, Any]:
        """The training job of a subject. The seed makes a second job do the same work."""
        return {
            "pretrained_model_name_or_path": str(self.model),
            "dataset": dataset,
            "instance_prompt": SUBJECTS[subject],
            "resolution": 64,
            "center_crop": True,
            "rank": 16,
            "target_modules": list(TARGETS),
            "learning_rate": 4e-3,
            "lr_scheduler": "cosine",
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


def prepare(plan: Plan) -> None:
    """Make the directory, without what an earlier demo left there.

    Raises InvalidInput when it holds something else, or belongs to a demo that still runs.
    """
    out = plan.out
    try:
        _refuse(plan)
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).write_text("made by: giornata demo\n")
        for name in OWN:
            path = out / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for folder in (plan.data, plan.log.parent):
            folder.mkdir()
    except OSError as error:
        message = f"cannot write to {error.filename or out}: {error.strerror}"
        raise InvalidInput([Fault(where="--out", message=message, hint="name another directory")]) from None


def _refuse(plan: Plan) -> None:
    out = plan.out
    if ":" in str(out):
        raise InvalidInput([Fault(where="--out", message=f"{out} has a colon in it", hint="name another directory")])
    if out.exists() and not out.is_dir():
        raise InvalidInput([Fault(where="--out", message=f"{out} is not a directory", hint="name another one")])
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        message = f"{out} holds files that are not a demo's"
        raise InvalidInput([Fault(where="--out", message=message, hint="name another or an empty directory")])
    pid = _server_pid(plan.data)
    if pid is not None and _runs(pid):
        message = f"another demo runs in {out} (process {pid})"
        raise InvalidInput([Fault(where="--out", message=message, hint="wait for it, or name another directory")])


def _server_pid(data: Path) -> int | None:
    try:
        return int(json.loads((data / SERVER_FILE).read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _runs(pid: int) -> bool:
    """Whether that process is there, and is Giornata: numbers of processes are given again."""
    try:
        os.kill(pid, 0)
        return b"giornata" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except ProcessLookupError:
        return False
    except OSError:
        return True
