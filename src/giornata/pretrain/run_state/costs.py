"""The costs of a run over all attempts, lost ones too, and the meter of each step.

A checkpoint does not know the costs that a lost attempt had after it. So every start of the trainers, and every
encoding before the run, keeps its own account beside the checkpoints:

    spent/1763730000000-9f1c….json     {"usd", "until_ms"} of one attempt; the first number is that of its run command
    spent/encode-1763720000000-….json  of one offline encoding

A killed attempt has written its costs up to its last account. Prices come from the configuration.
"""

import json
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.run_state.progress import TrainingProgress

log = logging.getLogger(__name__)

FOLDER = "spent"
TELL_EVERY_S = 30.0
"""Between two writings of an account, while steps are shorter."""


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


@dataclass(slots=True, kw_only=True)
class Meter:
    """Reads the clock at the end of every step; the first lap begins at `since_s`. `peak_flops_per_s` is of one
    trainer; None: MFU is not told."""

    clock_s: Callable[[], float]
    trainers: int
    usd_per_s: float
    flops_per_picture: int
    peak_flops_per_s: float | None
    since_s: float

    def lap_s(self) -> float:
        now_s = self.clock_s()
        lap_s, self.since_s = now_s - self.since_s, now_s
        return lap_s

    def numbers(self, *, rows: int, lap_s: float, waited_s: float) -> dict[str, float]:
        """`images_per_s` of all trainers; `data_wait_share`, the part of the time that the slowest to be fed waited;
        `mfu`, 0 to 1."""
        per_s = rows / lap_s if lap_s > 0 else 0.0
        found = {"images_per_s": per_s, "data_wait_share": min(1.0, waited_s / lap_s) if lap_s > 0 else 0.0}
        if self.peak_flops_per_s:
            found["mfu"] = per_s * self.flops_per_picture / (self.trainers * self.peak_flops_per_s)
        return found
