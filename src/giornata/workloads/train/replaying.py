"""Runs a stretch of a training job's steps again, from one of its checkpoints, and reports the result.

The checkpoint that is written at the end of the stretch stays here: its sha256 is reported, and no byte of it is
uploaded. Nothing that another machine has encoded is taken over.

Steps that were made in a shared batch, or with a smaller memory plan, are made so again: in the same place of a batch
as wide, beside nobody, since no operation of the base mixes rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from giornata.diffusion.adapter.lora import Adapters
from giornata.diffusion.base.recompute import Recompute
from giornata.diffusion.files.checkpoint import read_header
from giornata.diffusion.optim.optimizer import JobOptimizer
from giornata.diffusion.tensor_file import sha256_of_file
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import ResumePoint, Start
from giornata.protocol.specs import CHECKPOINT_ROLE, AuditSpec, ReplayCondition
from giornata.workloads.interface import AgentRequest, Outcome, Reporter, Stopped
from giornata.workloads.train.attempt import TrainingAttempt
from giornata.workloads.train.batching import BatchTrainer
from giornata.workloads.train.device.graphs import Graphs
from giornata.workloads.train.device.memory_budget import MemoryPlan, to_fingerprint, without_footprint
from giornata.workloads.train.preparation import Prepared
from giornata.workloads.train.results.checkpoint_writer import CheckpointWriter
from giornata.workloads.train.results.exporting import export


class ReplayReporter:
    """A reporter that keeps files to itself: `checkpoints` by step, and the sha256s of `files` by name."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.checkpoints: dict[int, Path] = {}
        self.files: dict[str, str] = {}

    def agent_request(self) -> AgentRequest:
        """Return the request, but for checkpoints, of which a replay has none to give."""
        agent_request = self._reporter.agent_request()
        if agent_request is AgentRequest.CHECKPOINT:
            return AgentRequest.GO_ON
        return AgentRequest.STOP if agent_request is AgentRequest.CHECKPOINT_AND_STOP else agent_request

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
    """A training attempt that ends after `to_step`. At the job's last step it exports the files, too.

    `conditions` are those that the audited machine told, in order; empty: what this machine chooses by itself.
    """

    to_step: int = field(default=0)
    conditions: tuple[ReplayCondition, ...] = ()

    @property
    def is_joint(self) -> bool:
        """Return True when the stretch was made in a shared batch."""
        return any(each.place is not None for each in self.conditions)

    def prepare(self) -> Prepared:
        """Prepare as training does; with the memory plan that the audited machine began with, if it told one."""
        ready = TrainingAttempt.prepare(self)
        plan = None if self.is_joint else self.repeated_plan(ready.first_step)
        if plan is None:
            return ready
        conditions = without_footprint(ready.fingerprint) | to_fingerprint(plan, self.spec)
        return replace(ready, layout=replace(ready.layout, memory_plan=plan), fingerprint=conditions)

    def repeated_plan(self, step: int) -> MemoryPlan | None:
        """Return the memory plan of the audited machine for the step after this one; None when it told none."""
        condition = self.condition(step)
        if condition is None:
            return None
        asked = MemoryPlan.asked_for(self.spec)
        how = condition.gradient_checkpointing
        return MemoryPlan(
            recompute=asked.recompute if how is None else Recompute(how), rows=condition.rows or asked.rows
        )

    def condition(self, step: int, micro: int = 0) -> ReplayCondition | None:
        """Return the condition of the micro-batch after so many steps, and after so many micro-batches of the next
        one."""
        begun = [each for each in self.conditions if (each.from_step, each.micro) <= (step, micro)]
        return begun[-1] if begun else None

    def obey(self, step: int, save: Callable[[int], None], *, due: bool, writer: CheckpointWriter) -> None:
        """Save after the last step of the stretch and nowhere else, and stop there unless the job ends there."""
        del due
        if self.reporter.agent_request() is AgentRequest.STOP:
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


class ReplayTrainer(BatchTrainer):
    """Repeats one job's steps in a shared batch: where it stood, and as wide as the batch was then."""

    def __init__(self, attempt: ReplayAttempt, *, places: int, **parts: Any) -> None:
        super().__init__(attempt.base, attempt.spec, places=places, **parts)
        self._replayed = attempt

    def _attempt(self, start: Start, reporter: Reporter) -> TrainingAttempt:
        del start, reporter
        return self._replayed

    def _fit(self) -> None:
        for member in self._members:
            condition = self._replayed.condition(member.step, member.micro)
            if condition is None or condition.place is None or condition.width is None:
                continue
            if member.slot.place != condition.place:
                member.slot.move(condition.place)
            self._slots.set_width(condition.width)


class ReplaySession:
    """A session of one attempt; `end` is how that ended."""

    def __init__(self, attempt: ReplayAttempt) -> None:
        self._waiting = [(attempt.start, attempt.reporter)]
        self.end: Outcome | Exception | None = None

    def next(self) -> tuple[Start, Reporter] | None:
        """Return the attempt, the first time only."""
        return self._waiting.pop() if self._waiting else None

    def ended(self, start: Start, end: Outcome | Exception) -> None:
        """Remember how the attempt has ended."""
        del start
        self.end = end

    def offer(self, places: int) -> None:
        """Do nothing: nobody may join."""

    def run(self, trainer: BatchTrainer) -> Outcome:
        """Run the attempt in this trainer's batch. Raises as `TrainingAttempt.run` does."""
        trainer.run(self)
        if isinstance(self.end, Outcome):
            return self.end
        raise self.end or Stopped(None)


def places_of(conditions: Sequence[ReplayCondition]) -> int:
    """Return how many places a batch has to have to be as wide as it was told to be. One place has plainer layers."""
    return max(2, *(each.width or 1 for each in conditions))


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


def replay(run: Callable[[], Outcome], attempt: ReplayAttempt, reporter: ReplayReporter) -> Outcome:
    """Run the stretch by `run`; the summary has the checkpoint's sha256, its conditions, and the files' sha256s.

    Raises Stopped when the agent wants it, and WorkloadFailed as training does.
    """
    try:
        run()
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
