"""Hands a run's metrics to TensorBoard and W&B while they come, from the command that trains.

tensorboard/events.out.tfevents.1795389873.00000001.giornata   with tracking.tensorboard: files of at most ROWS_A_FILE
                                                               rows, named by the start of the command

A command that goes on with a run begins with the rows that lead to the newest checkpoint, from the run's metrics. So
a tracker that missed rows gets them. Every row carries the time at which its step ended.
"""

import hashlib
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.evaluation.kept import kept_evaluations, samples_of
from giornata.pretrain.run_state.committed import progress_of, run_storage
from giornata.pretrain.run_state.metrics_log import metrics_of
from giornata.protocol.pretraining import PretrainConfig
from giornata.tracking.event_file import NAME, EventFile
from giornata.tracking.wandb_process import EVALUATED
from giornata.tracking.wandb_run import UPLOAD_S, Row, TrackerFailed, WandbRun, WandbStream, waiting

TENSORBOARD = "tensorboard"
NOT_CURVES = frozenset({"step", "time_s"})
ROWS_A_FILE = 2000
PUT_EVERY_S = 10.0
"""A file of TensorBoard's that grows is copied so often to a storage that is no folder."""
Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRow:
    """Values of a step, with the time at which the step ended. `png` are samples of an evaluation."""

    step: int
    time_s: float
    values: Mapping[str, float]
    png: bytes | None = None

    def for_wandb(self) -> Row:
        """W&B draws evaluations over their own step, for it takes no rows of earlier steps."""
        more = {EVALUATED: self.step} if any(name.startswith("evaluation/") for name in self.values) else {}
        return self.step, {**self.values, **more, "_timestamp": self.time_s}


def history(run: Storage, up_to: float = float("inf")) -> Iterator[TrackedRow]:
    """All steps that are known, and all evaluations, each after the row of its step."""
    left, time_s = kept_evaluations(run), 0.0
    for row in metrics_of(run):
        if row["step"] > up_to:
            return
        yield (shown := _of_step(row))
        time_s = shown.time_s
        while left and left[0][0] <= row["step"]:
            step, numbers, name = left.pop(0)
            yield TrackedRow(step=step, time_s=time_s, values=numbers, png=samples_of(run, name))


def _of_step(row: Mapping[str, float | None]) -> TrackedRow:
    values = {f"train/{tag}": each for tag, each in row.items() if each is not None and tag not in NOT_CURVES}
    return TrackedRow(step=int(row["step"] or 0), time_s=row.get("time_s") or 0.0, values=values)


class EventFiles:
    """TensorBoard's files of a run. A step that comes again supersedes all from that step on."""

    def __init__(self, run: Storage, scratch: Path, *, began_s: int, clock_s: Callable[[], float]) -> None:
        self._run, self._began_s, self._clock_s = run, began_s, clock_s
        self._folder = scratch if "://" in run.address else Path(run.path(TENSORBOARD))
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in run.names(TENSORBOARD):
            run.remove(name)
        self._file: EventFile | None = None
        self._name, self._rows, self._files, self._last, self._put_s = "", 0, 0, 0, 0.0

    def add(self, shown: TrackedRow) -> None:
        """Add values of a step. Raises OSError."""
        again = shown.step <= self._last and any(name.startswith("train/") for name in shown.values)
        if self._file is None or again or self._rows >= ROWS_A_FILE:
            self.close()
            self._files += 1
            self._name, self._rows = f"{NAME}.{self._began_s}.{self._files:08d}.giornata", 0
            supersedes = again or self._files == 1  # a TensorBoard that is open has read what another command wrote
            self._file = EventFile(self._folder / self._name, purge_step=shown.step if supersedes else None)
        samples = {} if shown.png is None else {"evaluation/samples": shown.png}
        self._file.add(shown.step, {**shown.values, **samples}, time_s=shown.time_s)
        self._last, self._rows = shown.step if again else max(shown.step, self._last), self._rows + 1

    def flush(self, *, now: bool = False) -> None:
        """Make all rows readable. Raises OSError."""
        if self._file is None:
            return
        self._file.flush()
        if "://" in self._run.address and (now or self._clock_s() - self._put_s >= PUT_EVERY_S):
            self._run.put(self._folder / self._name, f"{TENSORBOARD}/{self._name}")
            self._put_s = self._clock_s()

    def close(self) -> None:
        """Write the last rows. Raises OSError."""
        self.flush(now=True)
        if self._file is not None:
            self._file.close()
        self._file = None


def wandb_run(config: PretrainConfig, run: Storage) -> WandbRun:
    """The run's description for W&B: the configuration without addresses and paths.

    Raises ValueError when the configuration names no project.
    """
    if config.tracking.wandb_project is None:
        raise ValueError("tracking.wandb_project is not set")
    told = replace(
        config,
        storage="",
        data=replace(config.data, shards=""),
        encode=replace(config.encode, latents=None),
        model=replace(config.model, pretrained_model_name_or_path=None),
        evaluate=replace(config.evaluate, clip=None, inception=None),
    )
    return WandbRun(
        id=hashlib.sha256(f"{config.name}/{run}".encode()).hexdigest()[:16],
        name=config.name,
        project=config.tracking.wandb_project,
        entity=None,
        config=told.to_json(),
    )


class Trackers:
    """Is called with what a run tells, and returns at once: a thread does the work. A tracker that fails is told and
    changes nothing else."""

    def __init__(
        self,
        config: PretrainConfig,
        run: Storage,
        folder: Path,
        *,
        api_key: SecretStr | None,
        tell: Callable[[str], object],
        clock_s: Callable[[], float] = time.monotonic,
        base_url: str | None = None,
    ) -> None:
        self._config, self._run, self._folder, self._tell, self._clock_s = config, run, folder, tell, clock_s
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._wandb = None
        if api_key is not None:
            self._wandb = WandbStream(wandb_run(config, run), folder, api_key, base_url)
        self._thread = threading.Thread(target=self._work, name="pretrain-trackers", daemon=True)
        self._thread.start()

    def __call__(self, message: dict[str, Any]) -> None:
        """Metrics of a step, or numbers of an evaluation; every other message is ignored."""
        if message["event"] == "progress" or "numbers" in message:
            self._queue.put(message)

    def close(self, timeout_s: float = UPLOAD_S) -> None:
        self._queue.put(None)
        self._thread.join(timeout_s)
        try:
            if self._wandb is not None:
                self._wandb.finish(timeout_s, waiting(self._clock_s, lambda: False))
        except TrackerFailed as error:
            self._tell(f"W&B lacks curves: {error}; the same command sends what W&B lacks")

    def _work(self) -> None:
        try:
            wanted = self._config.tracking.tensorboard
            began_s = int(time.time())
            files = EventFiles(self._run, self._folder, began_s=began_s, clock_s=self._clock_s) if wanted else None
            for shown in self._shown():
                if files is not None:
                    files.add(shown)
                if self._wandb is not None:
                    self._wandb.add([shown.for_wandb()])
                    self._wandb.look_after(self._clock_s(), self._tell)
                if files is not None and self._queue.empty():
                    files.flush()
            if files is not None:
                files.close()
        except Exception as error:  # noqa: BLE001 - a supervisor: whatever a tracker does, the run goes on
            self._tell(f"curves are not written any more: {type(error).__name__}: {error}")

    def _shown(self) -> Iterator[TrackedRow]:
        """Rows from the storage, then rows of this command."""
        time_s = 0.0
        for shown in history(self._run, progress_of(self._run).step):
            yield shown
            time_s = shown.time_s
        while (message := self._queue.get()) is not None:
            if message["event"] == "progress":
                shown = _of_step(message["metrics"])
                time_s = shown.time_s
            else:
                png = samples_of(self._run, message["checkpoint"])
                shown = TrackedRow(step=message["step"], time_s=time_s, values=message["numbers"], png=png)
            yield shown


@contextmanager
def trackers(config: PretrainConfig, api_key: str | None) -> Iterator[Listener]:
    """Within, what the listener hears goes to the trackers that the configuration names."""
    key = None if api_key is None or config.tracking.wandb_project is None else SecretStr(api_key)
    if not config.tracking.tensorboard and key is None:
        yield lambda _: None
        return
    with tempfile.TemporaryDirectory(prefix="giornata-trackers-") as folder:
        warn = partial(print, "trackers:", file=sys.stderr)
        listener = Trackers(config, run_storage(config), Path(folder), api_key=key, tell=warn)
        try:
            yield listener
        finally:
            listener.close()
