"""Now and then a real training job, on a node with the real engine, beside one that nobody disturbed."""

import subprocess
import sys
import threading
import time
from typing import Any

from tests.system.soak.installation import TRAINING_PLACE, SoakInstallation, until
from tests.system.soak.users import Book

from giornata.client import Client
from giornata.domain.errors import Unavailable
from giornata.domain.jobs.job import TERMINAL

STEPS, CADENCE = 12, 4
WEIGHTS = ".safetensors"
PROMPT = "a drawing of sks"
REFERENCE_S = 200.0


class SoakTrainer:
    """Submits the same job every `every_s`; its LoRA has to be the same bytes each time."""

    def __init__(self, installation: SoakInstallation, client: Client, book: Book, *, every_s: float) -> None:
        self._installation, self._client, self._book, self._every_s = installation, client, book, every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)
        self.reference: dict[str, str] = {}

    def prepare(self) -> None:
        """A model and pictures, a node, and what comes out while there is no network_faults yet."""
        model, pictures = self._installation.home / "tiny", self._installation.home / "pictures"
        for module, *arguments in (
            ("tiny_model", str(model)),
            ("drawings", "teal-heart", str(pictures), "--count", "4", "--size", "64"),
        ):
            command = [sys.executable, "-m", f"giornata.diffusion.{module}", *arguments]
            subprocess.run(command, check=True, capture_output=True)
        dataset = self._client.dataset_from_folder(pictures, instance_prompt=PROMPT)
        self._spec: dict[str, Any] = {
            **{"pretrained_model_name_or_path": str(model), "instance_prompt": PROMPT},
            **{"dataset": dataset.id, "resolution": 64, "rank": 2, "seed": 42, "output_name": "toy"},
            **{"max_train_steps": STEPS, "checkpointing_steps": CADENCE, "mixed_precision": "no"},
        }
        self._installation.start_agent(TRAINING_PLACE)
        job_id = self._submit()
        until(lambda: self._client.get_job(job_id).state in TERMINAL, "the undisturbed training", REFERENCE_S)
        self._book.note(self._client.get_job(job_id))
        found = self._client.artifacts(job_id)
        self.reference = {it.name: it.sha256 for it in found if it.name.endswith(WEIGHTS)}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _train(self) -> None:
        due_s = time.monotonic()
        while not self._stopping.wait(max(0.0, due_s - time.monotonic())):
            try:
                self._submit()
            except Unavailable:
                self._book.counts["training put off"] += 1
            due_s += self._every_s

    def _submit(self) -> str:
        job = self._client.submit(self._spec)
        self._book.note(job)
        self._book.counts["trainings submitted"] += 1
        return job.id
