"""Carries files to storage in a thread of its own, while training goes on."""

import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from giornata.agent.backoff import delays_s
from giornata.domain.errors import GiornataError, InvalidInput

LONGEST_PAUSE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Something to do with storage. `replaces`: others of this name that still wait need not be done any more."""

    what: str
    path: Path
    deed: Callable[[Path], None]
    replaces: str = ""


class Porter:
    """Does parcels in their order and tries each again for `patience_s`; then gives it up, and says so.

    The files are the porter's: each is removed when its parcel is done. `monotonic_s` and `wait` are the clock.
    """

    def __init__(
        self,
        *,
        grumble: Callable[[str], None],
        monotonic_s: Callable[[], float],
        rng: random.Random,
        patience_s: float,
    ) -> None:
        self._grumble, self._now_s, self._rng, self._patience_s = grumble, monotonic_s, rng, patience_s
        self._bell = threading.Condition()
        self._waiting: list[Parcel] = []
        self._busy = False
        self._give_up_at_s: float | None = None
        self._ended = threading.Event()
        self.given_up: list[str] = []
        self._crash: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="porter", daemon=True).start()

    def take(self, parcel: Parcel) -> None:
        """Do it when its turn comes."""
        with self._bell:
            if parcel.replaces:
                for each in [old for old in self._waiting if old.replaces == parcel.replaces]:
                    self._waiting.remove(each)
                    each.path.unlink(missing_ok=True)
            self._waiting.append(parcel)
            self._bell.notify_all()

    def is_idle(self) -> bool:
        """Whether everything is done or given up."""
        with self._bell:
            return not self._waiting and not self._busy

    def hurry(self, within_s: float) -> None:
        """Give up whatever is not done within this time."""
        with self._bell:
            self._give_up_at_s = self._now_s() + within_s
            self._bell.notify_all()

    def close(self) -> None:
        """Begin nothing more."""
        with self._bell:
            self._ended.set()
            self._waiting.clear()
            self._bell.notify_all()

    def raise_crash(self) -> None:
        """Raise what nobody foresaw in the thread, in the thread that asks."""
        if not self._crash.empty():
            raise self._crash.get()

    def _work(self) -> None:
        while (parcel := self._next()) is not None:
            try:
                self._carry(parcel)
            except BaseException as error:  # noqa: BLE001 - the supervisor of this thread: the main one raises it
                self._crash.put(error)
            finally:
                parcel.path.unlink(missing_ok=True)
                with self._bell:
                    self._busy = False
                    self._bell.notify_all()

    def _next(self) -> Parcel | None:
        with self._bell:
            self._bell.wait_for(lambda: bool(self._waiting) or self._ended.is_set())
            if self._ended.is_set():
                return None
            self._busy = True
            return self._waiting.pop(0)

    def _carry(self, parcel: Parcel) -> None:
        until_s = self._now_s() + self._patience_s
        for pause_s in delays_s(self._rng, most_s=LONGEST_PAUSE_S):
            try:
                return parcel.deed(parcel.path)
            except (GiornataError, OSError) as error:
                refused = isinstance(error, InvalidInput)
                if refused or self._ended.is_set() or self._now_s() + pause_s >= self._until(until_s):
                    self.given_up.append(parcel.what)
                    return self._grumble(f"{parcel.what} could not be stored: {error}")
            self._ended.wait(pause_s)
        return None

    def _until(self, until_s: float) -> float:
        return until_s if self._give_up_at_s is None else min(until_s, self._give_up_at_s)
