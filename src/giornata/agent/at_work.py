"""The attempts of a node that have not ended, each in a thread of its own."""

import queue
import threading
from contextlib import ExitStack
from dataclasses import dataclass

from giornata.agent.attempt import Attempt
from giornata.agent.standing import Ending
from giornata.domain.telemetry import log_about
from giornata.protocol.work import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """What became of an attempt: how it ended, or the defect that ended it."""

    lease: Lease
    told_to_leave: bool
    ending: Ending | None = None
    defect: BaseException | None = None


class AtWork:
    """Used by the node's own thread alone. Attempts end in their threads; `next_over` forgets them."""

    def __init__(self) -> None:
        self._attempts: dict[str, Attempt] = {}
        self._over: queue.SimpleQueue[Over] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def engaged(self) -> tuple[str, ...]:
        """Those that need the engine, or will."""
        return tuple(each for each, attempt in self._attempts.items() if attempt.needs_engine)

    @property
    def told_to_leave(self) -> bool:
        """Whether one of them was told that the node shall go."""
        return any(attempt.told_to_leave for attempt in self._attempts.values())

    def begin(self, lease: Lease, attempt: Attempt, belongings: ExitStack) -> None:
        """Run the attempt at this lease; `belongings` are closed when it has ended."""
        self._attempts[lease.attempt_id] = attempt

        def run() -> None:
            ending, defect = None, None
            try:
                with belongings, log_about(job=lease.job_id, attempt=lease.attempt_id):
                    ending = attempt.run()
            except BaseException as error:  # noqa: BLE001 - handed on to the node's own thread, which raises it
                defect = error
            told_to_leave = attempt.told_to_leave
            self._over.put(Over(lease=lease, told_to_leave=told_to_leave, ending=ending, defect=defect))

        # Not waited for by an interpreter that ends: what has to be done in order is done by `next_over`.
        threading.Thread(target=run, name=f"attempt-{lease.attempt_id}", daemon=True).start()

    def next_over(self, timeout_s: float | None) -> Over | None:
        """Wait for one to end; None when none has in time."""
        try:
            over = self._over.get(timeout=timeout_s)
        except queue.Empty:
            return None
        del self._attempts[over.lease.attempt_id]
        return over
