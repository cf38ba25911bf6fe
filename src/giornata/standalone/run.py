"""One run: an engine, a storage, and the loop between them.

The engine is the node's (`giornata.agent`), and speaks the same pipe. What a node asks the server for is done here:
checkpoints go to the shelf, the bell is rung, the cache answers.
"""

import itertools
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from pydantic import SecretStr

from giornata.agent.blob_cache import link_or_copy
from giornata.agent.departure import Departure
from giornata.agent.digest import sha256_of
from giornata.agent.engine_process import EngineProcess
from giornata.agent.events import CacheFound, Event, Gone, Said
from giornata.agent.watchdog import Watchdog, crash_of
from giornata.agent.workplace import Room
from giornata.domain.errors import BlobMismatch, BlobMissing, Fault, GiornataError
from giornata.domain.reasons import Reason
from giornata.protocol import pipe
from giornata.protocol.events import EventType
from giornata.protocol.specs import step_artifacts
from giornata.protocol.training.results import WANDB
from giornata.standalone.bell import Bell
from giornata.standalone.ending import Ending, Failed, Finished, Interrupted
from giornata.standalone.order import Order
from giornata.standalone.porter import Parcel, Porter
from giornata.standalone.shelf import Manifest, Shelf

ATTEMPT = "standalone"
TICK_S = 0.2
ALIVE_S = 30.0
LEAVE_RESERVE = 0.4
"""Of the time to leave, kept for the last upload."""


class Listener(Protocol):
    """Whoever shows the run to a person. Called from several threads."""

    def phase(self, name: str, done: int | None, total: int | None) -> None: ...

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None: ...

    def stored(self, manifest: Manifest) -> None: ...

    def say(self, line: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a run is given of the world. Seconds by `monotonic_s`, instants in UTC by `now`."""

    shelf: Shelf
    room: Room
    out: Path
    porter: Porter
    bell: Bell
    listener: Listener
    departure: Departure
    monotonic_s: Callable[[], float]
    now: Callable[[], datetime]
    grace_s: float
    stall_s: float
    max_at_risk_s: float
    wandb_api_key: SecretStr | None = None
    results_mode: int = 0o644


@dataclass(slots=True, kw_only=True)
class Run:
    """Conducts one engine through one order."""

    order: Order
    around: Surroundings
    results: dict[str, Path] = field(default_factory=dict)
    resumed_from: int | None = None
    last_stored: Manifest | None = None
    _events: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="cache"))

    def resume_point(self) -> pipe.ResumePoint | None:
        """The highest checkpoint that is whole, on this disk; None for a run that begins. Raises Unavailable."""
        for manifest in self.around.shelf.checkpoints():
            path = self.around.room.inputs / f"checkpoint-{manifest.step:08d}.safetensors"
            try:
                self.around.shelf.fetch(manifest, path)
            except (BlobMissing, BlobMismatch) as error:
                self.around.listener.say(f"checkpoint {manifest.step} cannot be used: {error}; the one before is")
                continue
            self.resumed_from, self.last_stored = manifest.step, manifest
            # Whoever killed the run may have done so before anybody was told; the id says that it is the same.
            self._tell(manifest)
            return pipe.ResumePoint(step=manifest.step, path=path)
        return None

    def conduct(self, engine: EngineProcess, resume: pipe.ResumePoint | None) -> Ending:
        """From the start to the end. What is still on its way to storage then is waited for."""
        watchdog = Watchdog(
            engine=engine,
            alive_s=ALIVE_S,
            stall_s=self.around.stall_s,
            monotonic_s=self.around.monotonic_s,
            moved_at_s=self.around.monotonic_s(),
        )
        engine.attach(ATTEMPT, self._events.put)
        try:
            engine.send(self._start(resume))
            ending = self._listen(engine, watchdog)
        finally:
            engine.detach(ATTEMPT)
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._settle(ending)
        return ending

    def _start(self, resume: pipe.ResumePoint | None) -> pipe.Start:
        return pipe.Start(
            attempt=ATTEMPT,
            job=self.order.record.job_id,
            kind="train",
            spec=self.order.record.spec,
            directory=self.around.room.work,
            inputs=self.order.inputs,
            resume=resume,
            max_at_risk_s=self.around.max_at_risk_s,
            wandb_api_key=self.around.wandb_api_key if WANDB in self.order.spec.report_to else None,
        )

    # ---- the loop ----

    def _listen(self, engine: EngineProcess, watchdog: Watchdog) -> Ending:
        stop_by_s: float | None = None
        while True:
            ending = self._heard(self._next_event(), engine, watchdog, stopping=stop_by_s is not None)
            if ending is not None:
                return ending
            self.around.porter.raise_crash()
            if stop_by_s is None and self.around.departure.requested:
                engine.send(pipe.Stop(attempt=ATTEMPT, checkpoint=True))
                stop_by_s = self.around.monotonic_s() + (1 - LEAVE_RESERVE) * self.around.grace_s
            if stop_by_s is not None and self.around.monotonic_s() >= stop_by_s:
                engine.kill()
                return self._interrupted()
            if stop_by_s is None and (complaint := watchdog.complaint()) is not None:
                engine.kill()
                return Failed(reason=complaint.reason, message=complaint.message)

    def _next_event(self) -> Event | None:
        try:
            return self._events.get(timeout=TICK_S)
        except queue.Empty:
            return None

    def _heard(
        self, event: Event | None, engine: EngineProcess, watchdog: Watchdog, *, stopping: bool
    ) -> Ending | None:
        match event:
            case Said():
                watchdog.moved()
                return self._obey(event.message)
            case CacheFound():
                watchdog.moved()
                engine.send(pipe.CacheAnswer(attempt=ATTEMPT, key=event.key, path=event.path))
            case Gone():
                crash = crash_of(event.exit_code)
                message = f"{crash.message}; its last words: {engine.last_words or 'none'}"
                return self._interrupted() if stopping else Failed(reason=crash.reason, message=message)
        return None

    def _obey(self, message: pipe.FromEngine) -> Ending | None:
        listener = self.around.listener
        match message:
            case pipe.Phase():
                listener.phase(message.name, message.done, message.total)
            case pipe.Progress():
                listener.progress(message.step, message.total or self.order.spec.max_train_steps, message.metrics)
            case pipe.CheckpointWritten() | pipe.ArtifactWritten() | pipe.CachePut():
                return self._kept(message)
            case pipe.CacheGet():
                self._pool.submit(self._find_cache, message.key)
            case pipe.Log():
                listener.say(message.line)
            case pipe.Notice():
                listener.say(f"notice: {message.name} {message.data or ''}".rstrip())
            case pipe.Done():
                return Finished(step=message.step, summary=message.summary)
            case pipe.Stopped():
                return self._interrupted()
            case pipe.Failed():
                faults = tuple(
                    Fault(where=each.where, message=each.message, hint=each.hint) for each in message.faults
                )
                return Failed(reason=message.reason, message=message.message, faults=faults)
        return None

    def _interrupted(self) -> Interrupted:
        return Interrupted(step=None if self.last_stored is None else self.last_stored.step)

    # ---- files ----

    def _kept(self, message: pipe.CheckpointWritten | pipe.ArtifactWritten | pipe.CachePut) -> Failed | None:
        try:
            self._keep(message)
        except OSError as error:
            return Failed(reason=Reason.NODE_DISK, message=f"{message.path} cannot be kept: {error}")
        return None

    def _keep(self, message: pipe.CheckpointWritten | pipe.ArtifactWritten | pipe.CachePut) -> None:
        """Take a second name for the file at once: the engine may tidy up while it waits for its upload."""
        path, shelf = self.around.room.outbox / f"{next(self._numbers):06d}", self.around.shelf
        link_or_copy(message.path, path)
        match message:
            case pipe.CheckpointWritten():
                every = self.order.spec.checkpoints_keep_every
                wanted = every is not None and message.step % every == 0
                self._carry(
                    f"checkpoint {message.step}",
                    path,
                    partial(self._commit, message.step),
                    replaces="" if wanted else "checkpoint",
                )
            case pipe.CachePut():
                self._carry("something for the cache", path, partial(shelf.put_cache, message.key))
            case pipe.ArtifactWritten():
                name = Path(message.name).name
                self.results[name] = path
                copy = path.with_suffix(".copy")
                link_or_copy(path, copy)
                self._carry(name, copy, partial(shelf.put_result, name))
                if name in self._step_artifacts():
                    # For whoever watches the run.
                    deliver({name: path}, self.around.out, mode=self.around.results_mode)

    def _carry(self, what: str, path: Path, deed: Callable[[Path], None], *, replaces: str = "") -> None:
        self.around.porter.take(Parcel(what=what, path=path, deed=deed, replaces=replaces))

    def _commit(self, step: int, path: Path) -> None:
        """In the porter's thread: store, tell, and only then clean up."""
        shelf, spec = self.around.shelf, self.order.spec
        manifest = self.last_stored = shelf.commit(step, path, self.order.record, at=self.around.now())
        self.around.listener.stored(manifest)
        self._tell(manifest)
        shelf.clean(latest=spec.checkpoints_keep_latest, every=spec.checkpoints_keep_every)

    def _tell(self, manifest: Manifest) -> None:
        data = {"step": manifest.step, "size_bytes": manifest.size_bytes, "sha256": manifest.sha256}
        what, about = EventType.CHECKPOINT_COMMITTED, f"{manifest.step}|{manifest.sha256}"
        self.around.bell.ring(what, at=manifest.committed_at, data=data, about=about)

    def _find_cache(self, key: str) -> None:
        path: Path | None = self.around.room.cache / f"{next(self._numbers):06d}"
        try:
            found = path is not None and self.around.shelf.find_cache(key, path)
        except GiornataError as error:  # the engine can make the thing itself, but not wait for ever
            self.around.listener.say(f"the cache cannot be asked: {error}")
            found = False
        self._events.put(CacheFound(key=key, path=path if found else None))

    # ---- after the engine ----

    def fetch_earlier(self) -> None:
        """Pictures of steps that an earlier process of this run drew become results of it."""
        for name in sorted(self._step_artifacts() - self.results.keys()):
            path = self.around.room.outbox / f"{next(self._numbers):06d}"
            try:
                if self.around.shelf.find_result(name, path):
                    self.results[name] = path
            except GiornataError as error:
                self.around.listener.say(f"{name} stays where it is stored: {error}")

    def _step_artifacts(self) -> frozenset[str]:
        return step_artifacts("train", self.order.record.spec)

    def _settle(self, ending: Ending) -> None:
        """Wait for what is on its way to storage; told to go, only as long as there is time."""
        hurried = False
        while not self.around.porter.is_idle():
            if self.around.departure.requested and not hurried:
                self.around.porter.hurry(LEAVE_RESERVE * self.around.grace_s)
                hurried = True
            self.around.departure.wait(TICK_S) if not hurried else self._next_event()
        self.around.porter.raise_crash()
        if isinstance(ending, Failed) and ending.reason in {Reason.BAD_SPEC, Reason.BAD_DATA}:
            faults = [{"where": each.where, "message": each.message, "hint": each.hint} for each in ending.faults]
            data = {"error": ending.message, "faults": faults}
            self.around.bell.ring(EventType.JOB_FAILED, at=self.around.now(), data=data, about=ending.message)


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
