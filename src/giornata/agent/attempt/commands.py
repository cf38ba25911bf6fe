"""Orders to end an attempt before its work is done: from a signal, or from the server."""

import queue
from dataclasses import dataclass, field

from giornata.agent.attempt.events import Released
from giornata.client.retry import Monotonic
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import Order

# Of the time to leave, kept for the last upload and for giving the job back.
LEAVE_RESERVE = 0.4

LEFT = Released(reason=Reason.PREEMPTED, message="the node was told to leave")
RELEASED = Released(reason=Reason.RELEASED, message="the server wanted the job back", ordered=True)


class ShutdownSignal:
    """The order to leave, which a signal brings to the process.

    `ask` is called by signal handlers, which may interrupt any line of the main thread: it takes no lock that the
    thread could be holding. SimpleQueue.put is reentrant by its documentation; an Event or a Condition is not.
    """

    def __init__(self) -> None:
        self.requested = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ask(self) -> None:
        """Tell the process to leave."""
        self.requested = True
        self._wake.put(None)

    def wait(self, timeout_s: float) -> None:
        """Sleep, but not beyond the order to leave."""
        if self.requested:
            return
        try:
            self._wake.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return


class Leaving(Exception):
    """An order came while the job can be given back at once. The exception carries the outcome."""

    def __init__(self, outcome: Released) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


@dataclass(slots=True, kw_only=True)
class ServerCommands:
    """Written by the heartbeat thread and read by every thread of the attempt. No later command takes one back.

    The order to leave is the node's, comes from a signal or from the server, and is urgent: what is not done within
    `grace_s` is lost with the machine. The order to release is this attempt's alone; `release_s` bounds how long the
    engine may take to obey, and then how long the checkpoint may be on its way.
    """

    shutdown: ShutdownSignal
    monotonic_s: Monotonic
    grace_s: float
    release_s: float
    _drained: bool = field(default=False, init=False)
    _released: bool = field(default=False, init=False)
    _leave_by_s: float | None = field(default=None, init=False)

    def receive(self, order: Order) -> None:
        """Take the order in the server's answer to a heartbeat."""
        self._drained = self._drained or order is Order.DRAIN
        self._released = self._released or order is Order.RELEASE

    @property
    def leave(self) -> bool:
        """True when the node has to leave, by a signal or by the server's order."""
        return self._drained or self.shutdown.requested

    def wanted(self) -> Released | None:
        """Return the outcome with which the attempt has to end; None when the attempt goes on."""
        if self.leave:
            return LEFT
        return RELEASED if self._released else None

    def news(self, stopping: object) -> Released | None:
        """Return the wanted outcome; None when an attempt that is already `stopping` learns nothing by it."""
        wanted = self.wanted()
        return wanted if stopping is None or (stopping is RELEASED and wanted is LEFT) else None

    def leave_by(self) -> float:
        """Return when the process has to end, counted from the first look at the order."""
        if self._leave_by_s is None:
            self._leave_by_s = self.monotonic_s() + self.grace_s
        return self._leave_by_s

    def stop_by(self, outcome: Released) -> float:
        """Return until when the engine may take to stop for this outcome. Call this once for an order to release."""
        if outcome is RELEASED:
            return self.monotonic_s() + self.release_s
        return self.leave_by() - LEAVE_RESERVE * self.grace_s
