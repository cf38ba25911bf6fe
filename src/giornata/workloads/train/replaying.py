"""Runs a stretch of a training job's steps again, from one of its checkpoints, and reports the result.

The checkpoint that is written at the end of the stretch stays here: its sha256 is reported, and no byte of it is
uploaded. Nothing that another machine has encoded is taken over.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from giornata.diffusion.adapter.lora import Adapters
from giornata.diffusion.files.checkpoint import read_header
from giornata.diffusion.optim.optimizer import JobOptimizer
from giornata.diffusion.tensor_file import sha256_of_file
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import ResumePoint, Start
from giornata.protocol.specs import CHECKPOINT_ROLE, AuditSpec
from giornata.workloads.interface import AgentRequest, Outcome, Reporter, Stopped
from giornata.workloads.train.attempt import TrainingAttempt
from giornata.workloads.train.device.graphs import Graphs
from giornata.workloads.train.preparation import Prepared
from giornata.workloads.train.results.checkpoint_writer import CheckpointWriter
from giornata.workloads.train.results.exporting import export


class ReplayReporter:
    """A reporter that keeps files to itself: `checkpoints` by step, and the sha256s of `files` by name."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.checkpoints: dict[int, Path] = {}
        self.files: dict[str, str] = {}

    def wish(self) -> AgentRequest:
        """Return the request, but for checkpoints, of which a replay has none to give."""
        wish = self._reporter.wish()
        if wish is AgentRequest.CHECKPOINT:
            return AgentRequest.GO_ON
        return AgentRequest.STOP if wish is AgentRequest.CHECKPOINT_AND_STOP else wish

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Pass the phase on to the agent."""
        self._reporter.phase(name, done, total)

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        """Pass the step and its metrics on: the server compares the losses."""
        self._reporter.progress(step, total, metrics)

    def checkpoint(self, step: int, path: Path, _: float) -> None:
        """Remember where the checkpoint lies."""
        self.checkpoints[step] = path

    def artifact(self, name: str, path: Path, _: str = "") -> None:
        """Remember the hash of the file."""
        self.files[name] = sha256_of_file(path)

    def picture(self, *_: Any, **__: Any) -> None:
        """Do nothing: a training job has no pictures of a lease."""

    def picture_failed(self, *_: Any) -> None:
        """Do nothing: a training job has no pictures of a lease."""

    def dropped_pictures(self) -> frozenset[tuple[str, int]]:
        """Return nothing: a training job has no pictures of a lease."""
        return frozenset()

    def cache_get(self, _: str) -> Path | None:
        """Return None: what the audited machine has encoded may be wrong as well."""
        return None

    def cache_put(self, *_: Any) -> None:
        """Do nothing: the job's own attempts fill the cache."""

    def log(self, line: str) -> None:
        """Pass the line on to the agent."""
        self._reporter.log(line)

    def notice(self, name: str, data: dict[str, Any]) -> None:
        """Write the notice to the log: it is none of the training job's."""
        self._reporter.log(f"{name}: {data}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAttempt(TrainingAttempt):
    """A training attempt that ends after `to_step`. At the job's last step it exports the files, too."""

    to_step: int = field(default=0)

    def obey(self, step: int, save: Callable[[int], None], *, due: bool, writer: CheckpointWriter) -> None:
        """Save after the last step of the stretch and nowhere else, and stop there unless the job ends there."""
        del due
        if self.reporter.wish() is AgentRequest.STOP:
            raise Stopped(None)
        if step != self.to_step:
            return
        save(step)
        if step < self.spec.max_train_steps:
            writer.settle()
            raise Stopped(step)

    def is_last_call(self, step: int) -> bool:
        """Return False: the audited job's sheets are no part of the audit."""
        del step
        return False

    def finish(
        self,
        adapters: Adapters,
        optimizer: JobOptimizer,
        writer: CheckpointWriter,
        ready: Prepared,
        graphs: Graphs | None,
    ) -> Outcome:
        """Write the LoRA files, and nothing that is drawn or reported elsewhere."""
        del adapters, graphs
        export(
            optimizer.result(),
            self.base,
            self.spec,
            captions=[sample.caption for sample in ready.instances.samples],
            directory=self.start.directory,
            reporter=self.reporter,
            history=writer.history,
            data_sha256=writer.data_hash,
            base_sha256=self.base_sha256,
        )
        return Outcome(step=self.to_step, summary={})


def start_of_stretch(start: Start, spec: AuditSpec) -> Start:
    """Return the start of the training job at the beginning of the stretch. Raises WorkloadFailed(BAD_DATA)."""
    resume = None
    if spec.checkpoint is not None:
        found = [file for file in start.inputs if file.role == CHECKPOINT_ROLE]
        if not found:
            fault = Fault(where=f"spec.{CHECKPOINT_ROLE}", message="is not among the job's files")
            raise WorkloadFailed(Reason.BAD_DATA, str(fault), (fault,))
        resume = ResumePoint(step=spec.from_step, path=found[0].path)
    return start.model_copy(
        update={
            "kind": "train",
            "spec": spec.training.model_dump(mode="json"),
            "inputs": tuple(file for file in start.inputs if file.role != CHECKPOINT_ROLE),
            "resume": resume,
        }
    )


def replay(attempt: ReplayAttempt, reporter: ReplayReporter) -> Outcome:
    """Run the stretch; the summary has the checkpoint's sha256, its conditions, and the files' sha256s.

    Raises Stopped when the agent wants it, and WorkloadFailed as training does.
    """
    try:
        attempt.run()
    except Stopped as stopped:
        if stopped.step != attempt.to_step:
            raise Stopped(None) from stopped
    path = reporter.checkpoints[attempt.to_step]
    header = read_header(path)
    summary = {
        "sha256": sha256_of_file(path),
        "fingerprint": header.fingerprint,
        "history": list(header.history),
        "files": reporter.files,
    }
    return Outcome(step=attempt.to_step, summary=summary)
