"""The costs of a run over all attempts, lost ones too, the rates of a step, and when a checkpoint pays.

A checkpoint does not know the costs that a lost attempt had after it. So every start of the trainers, and every
encoding before the run, keeps its own account beside the checkpoints:

    spent/1763730000000-9f1c….json     {"usd", "until_ms"} of one attempt; the first number is that of its run command
    spent/encode-1763720000000-….json  of one offline encoding

A killed attempt has written its costs up to its last account. Prices come from the configuration.
"""

import json
import logging
import math
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.run_state.progress import TrainingProgress
from giornata.protocol.pretraining import CheckpointCadence, PretrainConfig

log = logging.getLogger(__name__)

FOLDER = "spent"
TELL_EVERY_S = 30.0
"""Between two writings of an account, while steps are shorter."""
LEAST_S, MOST_S = 60.0, 3600.0
"""Bounds of the seconds between two checkpoints with young_daly."""
GUESSED_INTERRUPTION_S = 4 * 3600.0
"""Counts as one interval without interruption before anything was observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStart:
    """One start of the trainers. It has cost money since `began_s`, by the loop's clock; `began_ms` is the same
    instant by the wall clock."""

    name: str
    began_s: float
    began_ms: int = 0

    @classmethod
    def begun(
        cls, run: Storage, *, command_ms: int, process_ms: int, now_ms: int, now_s: Callable[[], float]
    ) -> "TrainerStart":
        """The one that begins in a process of `process_ms`, started by a run command of `command_ms`.

        The first attempt of a command costs from the beginning of that, a later one from its own process on; no time
        is counted twice. Instants are epoch ms. Raises OSError.
        """
        prefix = f"{FOLDER}/{command_ms:013d}-"
        told = [int(_read(run, name)["until_ms"]) for name in run.names(FOLDER) if name.startswith(prefix)]
        began_ms = max(process_ms, command_ms, *told) if told else command_ms
        began_ms = min(began_ms, now_ms)  # another machine's clock
        return cls(
            name=f"{command_ms:013d}-{uuid.uuid4().hex}",
            began_s=now_s() - (now_ms - began_ms) / 1000,
            began_ms=began_ms,
        )


def spent_usd(run: Storage, progress: TrainingProgress) -> float:
    """USD of all attempts and encodings that have a record, and at least the USD of the checkpoint.
    Raises OSError."""
    accounts = sum(_read(run, name)["usd"] for name in run.names(FOLDER))
    return max(accounts, progress.spent_usd)


@dataclass(slots=True, kw_only=True)
class CostRecord:
    """Costs of one attempt. The account grows by laps without gaps between them, and a thread writes it. A failure to
    write it is a warning. `before_usd` is what other attempts cost."""

    run: Storage
    attempt: TrainerStart
    before_usd: float = 0.0
    written: bool = True
    own_usd: float = 0.0
    until_s: float = field(init=False)
    _told_s: float | None = None
    _under_way: Future[None] | None = None
    _thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.until_s = self.attempt.began_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pretrain-spent")

    @classmethod
    def of(
        cls, attempt: TrainerStart, run: Storage, progress: TrainingProgress, *, written: bool = True
    ) -> "CostRecord":
        """The account of an attempt that goes on from this progress. One that is not `written` reads nothing either:
        it is of a trainer beside the first. Raises OSError."""
        before_usd = spent_usd(run, progress) if written else progress.spent_usd
        return cls(run=run, attempt=attempt, before_usd=before_usd, written=written)

    @property
    def total_usd(self) -> float:
        """Dollars of this attempt and of all others."""
        return self.before_usd + self.own_usd

    def add(self, lap_s: float, usd_per_s: float) -> None:
        """Add a lap. Never waits for the storage."""
        self.own_usd += lap_s * usd_per_s
        self.until_s += lap_s
        due = self._told_s is None or self.until_s - self._told_s >= TELL_EVERY_S
        if self.written and due and self.own_usd and (self._under_way is None or self._under_way.done()):
            self._told_s = self.until_s
            self._under_way = self._thread.submit(self._write, self._content())

    def close(self) -> None:
        """Write the account for the last time."""
        if self.written and self.own_usd:
            self._thread.submit(self._write, self._content())
        self._thread.shutdown(wait=True)

    def _content(self) -> bytes:
        attempt = self.attempt
        until_ms = attempt.began_ms + round((self.until_s - attempt.began_s) * 1000)
        return (json.dumps({"usd": self.own_usd, "until_ms": until_ms}) + "\n").encode()

    def _write(self, content: bytes) -> None:
        try:
            self.run.write(f"{FOLDER}/{self.attempt.name}.json", content)
        except OSError as error:
            log.warning("what this attempt cost was not written to %s: %s", self.run, error)


def _read(run: Storage, name: str) -> dict[str, float]:
    try:
        values = json.loads(run.read(name))
        return {"usd": float(values["usd"]), "until_ms": int(values["until_ms"])}
    except (ValueError, KeyError, TypeError) as error:
        log.warning("the account %s of %s is not counted: it cannot be read (%s)", name, run, error)
        return {"usd": 0.0, "until_ms": 0}


def step_rates(*, rows: int, lap_s: float, waited_s: float, peak_per_s: float | None) -> dict[str, float]:
    """`images_per_s` of all trainers; `data_wait_share`, the part of the time that the slowest to be fed waited;
    `mfu`, 0 to 1, where the pictures of the trainers' peak are known."""
    per_s = rows / lap_s if lap_s > 0 else 0.0
    found = {"images_per_s": per_s, "data_wait_share": min(1.0, waited_s / lap_s) if lap_s > 0 else 0.0}
    return found | ({"mfu": per_s / peak_per_s} if peak_per_s else {})


def interval_s(save_s: float, interruption_s: float) -> float:
    """Seconds between two checkpoints at which saving and repeated work cost least together: sqrt(2 · C · M), for a
    save that stops the training for C seconds and a mean of M seconds between interruptions. Within LEAST_S and
    MOST_S.

    Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; the first-order term of
    Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006. C is only
    what the loop waits for: the rest is written while training goes on.
    """
    return min(MOST_S, max(LEAST_S, math.sqrt(2.0 * save_s * interruption_s)))


def interruption_s(configured_s: float | None, progress: TrainingProgress) -> float:
    """Mean seconds between interruptions: as configured, or as observed in all attempts so far."""
    if configured_s is not None:
        return configured_s
    return (GUESSED_INTERRUPTION_S + progress.trained_s) / (1 + progress.interruptions)


@dataclass(slots=True, kw_only=True)
class Cadence:
    """Decides when checkpoints are due, on the first trainer, for all trainers."""

    config: PretrainConfig
    clock_s: Callable[[], float]
    _saved_at_s: float = 0.0
    _saved_at_step: int = 0
    _save_s: float = 0.0

    @property
    def _timed(self) -> bool:
        return self.config.train.checkpoint_cadence is CheckpointCadence.YOUNG_DALY

    def begin(self, progress: TrainingProgress) -> None:
        """Count steps and seconds from this progress on."""
        self._saved_at_step = progress.step
        if self._timed:
            self._saved_at_s = self.clock_s()

    def due(self, progress: TrainingProgress) -> bool:
        steps = self.config.train.checkpoint_steps
        if not self._timed:
            return (progress.step + 1) % steps == 0
        wanted_s = interval_s(self._save_s, interruption_s(self.config.workers.interruption_s, progress))
        return progress.step + 1 - self._saved_at_step >= steps or self.clock_s() - self._saved_at_s >= wanted_s

    def saving(self, save: Callable[[], None], progress: TrainingProgress) -> None:
        """Save, and measure how long the training stands still for it."""
        began_s = self.clock_s() if self._timed else 0.0
        save()
        self.begin(progress)
        self._save_s = self._saved_at_s - began_s
