"""The platform of a standalone run: a folder or bucket takes what a control plane takes otherwise.

A standalone run is an attempt like any other (`giornata.agent.attempt.attempt`). Uploads go to the storage of the
run, which holds the cache as well. Webhooks tell of what happens, and a listener shows the run to a person.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from pydantic import SecretStr

from giornata.agent.attempt.events import AttemptFailed, AttemptOutcome, Finished, Released, Undelivered
from giornata.agent.attempt.platform import AttemptState
from giornata.agent.transfer.blob_cache import link_or_copy, sha256_of
from giornata.agent.work_dir import JobDir
from giornata.client.retry import QueuedTask, TaskQueue, delays_s, persist
from giornata.domain.errors import BlobMismatch, BlobMissing, GiornataError, InvalidInput, Unavailable
from giornata.domain.jobs.reasons import BLAME, Blame, Reason
from giornata.protocol.events import EventType
from giornata.protocol.node import pipe
from giornata.protocol.specs import step_artifacts
from giornata.protocol.training.results import WANDB
from giornata.standalone.run_request import RunRequest
from giornata.standalone.storage import CheckpointManifest, RunStorage
from giornata.standalone.webhooks import WebhookSender

ATTEMPT = "standalone"
CHECKPOINT = "checkpoint"


class RunExitCode(IntEnum):
    """The exit codes of a standalone run. The numbers are those of sysexits.h where it has one."""

    DONE = 0
    FAILED = 1  # the run cannot succeed as it is: it would fail the same way again
    BAD_INPUT = 2
    STORAGE_AWAY = 69
    CRASHED = 70  # the machine, or nobody knows: started again it goes on from the last checkpoint
    STOPPED = 75  # told to go, by a signal; started again it goes on


def exit_code_of(outcome: AttemptOutcome) -> RunExitCode:
    """The exit code that tells the outcome."""
    match outcome:
        case Finished():
            return RunExitCode.DONE
        case AttemptFailed() if BLAME[outcome.reason] is not Blame.JOB:
            return RunExitCode.CRASHED
        case AttemptFailed():
            return RunExitCode.BAD_INPUT if outcome.faults else RunExitCode.FAILED
    return RunExitCode.STOPPED


class RunListener(Protocol):
    """Shows the run to a person. Called from several threads."""

    def phase(self, name: str, done: int | None, total: int | None) -> None: ...

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None: ...

    def stored(self, manifest: CheckpointManifest) -> None: ...

    def say(self, line: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeps:
    """The dependencies that a process gives its run.

    `now` gives instants in UTC. Results get the file mode `results_mode`.
    """

    storage: RunStorage
    job_dir: JobDir
    out: Path
    webhooks: WebhookSender
    listener: RunListener
    now: Callable[[], datetime]
    rng: random.Random
    storage_patience_s: float
    max_at_risk_s: float
    wandb_api_key: SecretStr | None = None
    results_mode: int = 0o644


class StoragePlatform:
    """Runs one request against one storage (`giornata.agent.attempt.platform.Platform`)."""

    def __init__(self, request: RunRequest, *, state: AttemptState, deps: RunDeps) -> None:
        self.request, self._state, self.deps = request, state, deps
        self.results: dict[str, Path] = {}
        self.files: list[dict[str, object]] = []
        self.resume: pipe.ResumePoint | None = None
        self.last_stored: CheckpointManifest | None = None
        self.given_up: list[str] = []
        self._numbers = itertools.count()
        self._uploads = TaskQueue("uploads")
        self.is_idle = self._uploads.is_idle
        self._step_artifacts = step_artifacts("train", request.record.spec)

    # ---- see Platform ----

    def open(self) -> None:
        """Start the thread of the uploads."""
        self._uploads.start()

    def close(self) -> None:
        """Begin no upload any more."""
        self._uploads.stop(wait_s=0.0)

    def check(self) -> None:
        """Raise Leaving when the process was told to go."""
        self._state.check()

    def prepare(self) -> pipe.Start:
        """Put the start message together; the resume point was found before."""
        deps, record = self.deps, self.request.record
        return pipe.Start(
            attempt=ATTEMPT,
            job=record.job_id,
            kind="train",
            spec=record.spec,
            directory=deps.job_dir.work,
            inputs=self.request.inputs,
            resume=self.resume,
            max_at_risk_s=deps.max_at_risk_s,
            wandb_api_key=deps.wandb_api_key if WANDB in self.request.spec.report_to else None,
        )

    def why_lost(self) -> None:
        """Return None: there is no lease that could be lost."""

    def phase(self, message: pipe.PhaseMessage) -> None:
        """Show what the engine is busy with."""
        self.deps.listener.phase(message.name, message.done, message.total)

    def step(self, message: pipe.Progress) -> None:
        """Show the step with its metrics."""
        total = message.total or self.request.spec.max_train_steps
        self.deps.listener.progress(message.step, total, message.metrics)

    def log_line(self, text: str) -> None:
        """Show a line of the workload's log."""
        self.deps.listener.say(text)

    def stderr_line(self, text: str) -> None:
        """Show nothing: a crash brings the last lines of the engine."""

    def notice(self, message: pipe.Notice) -> None:
        """Show the notice's name and data."""
        self.deps.listener.say(f"notice: {message.name} {message.data or ''}".rstrip())

    def upload(self, message: pipe.CheckpointWritten | pipe.ArtifactWritten | pipe.CachePut, path: Path) -> None:
        """Queue the file for the storage. Results stay on this disk as well, and those of a step appear at once."""
        storage = self.deps.storage
        match message:
            case pipe.CheckpointWritten():
                every = self.request.spec.checkpoints_keep_every
                kept = every is not None and message.step % every == 0
                what, replaces = f"checkpoint {message.step}", "" if kept else CHECKPOINT
                self._put(what, path, lambda: self._commit(message.step, path), replaces=replaces)
            case pipe.CachePut():
                self._put("something for the cache", path, lambda: storage.put_cache(message.key, path))
            case pipe.ArtifactWritten():
                name = Path(message.name).name
                self.results[name] = path
                copy = path.with_suffix(".copy")
                link_or_copy(path, copy)
                self._put(name, copy, lambda: storage.put_result(name, copy))
                if name in self._step_artifacts:
                    deliver({name: path}, self.deps.out, mode=self.deps.results_mode)

    def picture(self, message: pipe.PictureWritten | pipe.PictureFailed, path: Path | None) -> None:
        """Refuse the picture: a run's results are artifacts."""
        self.log_line(f"the engine announced picture {message.number} of {message.order_id} in a run that draws none")
        if path is not None:
            path.unlink()

    def out_of_time(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """Give up the uploads that are left. Results on this disk are whole without them."""
        for what in self._uploads.pending():
            self.given_up.append(what)
            self.deps.listener.say(f"{what} could not be stored: there was no time left")
        return outcome

    def find_cache(self, key: str) -> Path | None:
        """Fetch what an earlier process of the run left under the key."""
        path = self._new_path(self.deps.job_dir.cache)
        try:
            return path if self.deps.storage.find_cache(key, path) else None
        except GiornataError as error:  # the engine can make the thing itself, but not wait for ever
            self.deps.listener.say(f"the cache cannot be asked: {error}")
            return None

    def report(self, outcome: AttemptOutcome, *, tail: Sequence[str]) -> AttemptOutcome:
        """Put the results of a finished run into the output folder, and tell the webhook how the run ended."""
        match outcome:
            case Finished():
                self._fetch_earlier()
                self.files = deliver(self.results, self.deps.out, mode=self.deps.results_mode)
                data = {"step": outcome.step, "files": self.files}
                self._notify(EventType.JOB_SUCCEEDED, data, about="".join(str(each["sha256"]) for each in self.files))
            case AttemptFailed(reason=Reason.BAD_SPEC | Reason.BAD_DATA):
                faults = [
                    {"where": each.where, "message": each.message, "hint": each.hint} for each in outcome.faults
                ]
                self._notify(
                    EventType.JOB_FAILED, {"error": outcome.message, "faults": faults}, about=outcome.message
                )
            case AttemptFailed(exit_code=int()):
                return _crashed(outcome.message, outcome.exit_code, tail)
            case Released(reason=Reason.RELEASED):  # there is no queue that another machine takes the job from
                return _crashed(outcome.message, None, tail)
        return outcome

    # ---- checkpoints ----

    def find_resume_point(self) -> pipe.ResumePoint | None:
        """Fetch the highest checkpoint that is whole; None for a run that begins. Raises Unavailable."""
        for manifest in self.deps.storage.checkpoints():
            path = self.deps.job_dir.inputs / f"checkpoint-{manifest.step:08d}.safetensors"
            try:
                self.deps.storage.fetch(manifest, path)
            except (BlobMissing, BlobMismatch) as error:
                self.deps.listener.say(f"checkpoint {manifest.step} cannot be used: {error}; the one before is")
                continue
            self.last_stored = manifest
            self.resume = pipe.ResumePoint(step=manifest.step, path=path)
            # A kill may have come before the webhook; the event's id says that the event is the same.
            self._tell(manifest)
            break
        return self.resume

    def _commit(self, step: int, path: Path) -> None:
        """Store a checkpoint, tell of it, and only then clean up. Called by the thread of the uploads."""
        storage, spec = self.deps.storage, self.request.spec
        manifest = self.last_stored = storage.commit(step, path, self.request.record, at=self.deps.now())
        self.deps.listener.stored(manifest)
        self._tell(manifest)
        storage.clean(latest=spec.checkpoints_keep_latest, every=spec.checkpoints_keep_every)

    def _tell(self, manifest: CheckpointManifest) -> None:
        data = {"step": manifest.step, "size_bytes": manifest.size_bytes, "sha256": manifest.sha256}
        about = f"{manifest.step}|{manifest.sha256}"
        self.deps.webhooks.notify(EventType.CHECKPOINT_COMMITTED, at=manifest.committed_at, data=data, about=about)

    def _notify(self, event: EventType, data: dict[str, object], *, about: str) -> None:
        self.deps.webhooks.notify(event, at=self.deps.now(), data=data, about=about)

    # ---- uploads ----

    def _put(self, what: str, path: Path, run: Callable[[], None], *, replaces: str = "") -> None:
        def ended(error: Exception | None) -> None:
            if error is not None and not self._uploads.is_stopped:
                self.given_up.append(what)
                message = f"{what} could not be stored: {error}"
                self._state.events.put(Undelivered(needed=False, reason=Reason.NODE_DISK, message=message))

        self._uploads.put(
            QueuedTask(what=what, run=lambda: self._persist(run), ended=ended, path=path, replaces=replaces)
        )

    def _persist(self, store: Callable[[], None]) -> None:
        """Store for as long as patience lasts: every error of a storage but a refusal may pass."""

        def call() -> None:
            try:
                store()
            except InvalidInput:
                raise
            except (GiornataError, OSError) as error:
                raise Unavailable(str(error)) from error

        until_s = self._state.monotonic_s() + self.deps.storage_patience_s
        persist(
            call,
            delays=delays_s(self.deps.rng),
            sleep=self._uploads.sleep,
            monotonic_s=self._state.monotonic_s,
            until=lambda: 0.0 if self._uploads.is_stopped else until_s,
        )

    def _fetch_earlier(self) -> None:
        """Make the pictures of steps that an earlier process of this run drew results of this one."""
        for name in sorted(self._step_artifacts - self.results.keys()):
            path = self._new_path(self.deps.job_dir.outbox)
            try:
                if self.deps.storage.find_result(name, path):
                    self.results[name] = path
            except GiornataError as error:
                self.deps.listener.say(f"{name} stays where it is stored: {error}")

    def _new_path(self, directory: Path) -> Path:
        return directory / f"fetched-{next(self._numbers):06d}"


def _crashed(message: str, exit_code: int | None, tail: Sequence[str]) -> AttemptFailed:
    words = " | ".join(tail[-5:]) or "none"
    return AttemptFailed(Reason.CRASHED, f"{message}; its last output: {words}", exit_code=exit_code)


def deliver(results: dict[str, Path], out: Path, *, mode: int) -> list[dict[str, object]]:
    """Put the results into `out` as files of this mode, each whole or not at all.

    Returns name, size_bytes and sha256 of each.
    """
    said: list[dict[str, object]] = []
    for name, path in results.items():
        aside = out / f".{name}.part"
        aside.write_bytes(path.read_bytes())
        aside.chmod(mode)
        aside.replace(out / name)
        said.append({"name": name, "size_bytes": path.stat().st_size, "sha256": sha256_of(path)})
    return said
