"""Whether an attempt has to end before its work is done, how, and by when."""

from dataclasses import dataclass, field

from giornata.agent.departure import Departure
from giornata.agent.held_lease import Monotonic
from giornata.agent.standing import GivenBack
from giornata.domain.reasons import Reason
from giornata.protocol.work import Order

# Of the time to leave, kept for the last upload and for giving the job back.
LEAVE_RESERVE = 0.4

LEFT = GivenBack(reason=Reason.PREEMPTED, message="the node was told to leave")
RELEASED = GivenBack(reason=Reason.RELEASED, message="the server wanted the job back", ordered=True)


class Leaving(Exception):
    """An order came while the job could be given back at once; carries how the attempt ends."""

    def __init__(self, ending: GivenBack) -> None:
        super().__init__(ending.message)
        self.ending = ending


@dataclass(slots=True, kw_only=True)
class Orders:
    """Heard by the heart's thread, read by all. What was heard stands: no later order takes it back.

    The order to leave is the node's, comes from a signal or from the server, and is urgent: what is not done within
    `grace_s` is lost with the machine. The order to release is this attempt's alone; `release_s` bounds how long the
    engine may take to obey, and then how long the checkpoint may be on its way.
    """

    departure: Departure
    monotonic_s: Monotonic
    grace_s: float
    release_s: float
    _drained: bool = field(default=False, init=False)
    _released: bool = field(default=False, init=False)
    _leave_by_s: float | None = field(default=None, init=False)

    def hear(self, order: Order) -> None:
        """The server's answer to a heartbeat."""
        self._drained = self._drained or order is Order.DRAIN
        self._released = self._released or order is Order.RELEASE

    @property
    def leave(self) -> bool:
        """Whether the node shall go: a signal, or the server's order."""
        return self._drained or self.departure.requested

    def wanted(self) -> GivenBack | None:
        """How the attempt is to end; None: it goes on."""
        if self.leave:
            return LEFT
        return RELEASED if self._released else None

    def news(self, stopping: object) -> GivenBack | None:
        """As `wanted`, but None when an attempt that is already `stopping` for some ending learns nothing by it."""
        wanted = self.wanted()
        return wanted if stopping is None or (stopping is RELEASED and wanted is LEFT) else None

    def leave_by(self) -> float:
        """When the process has to end; counted from when the order was first seen."""
        if self._leave_by_s is None:
            self._leave_by_s = self.monotonic_s() + self.grace_s
        return self._leave_by_s

    def stop_by(self, ending: GivenBack) -> float:
        """Until when the engine may take to stop for this ending; of an order to release asked once."""
        if ending is RELEASED:
            return self.monotonic_s() + self.release_s
        return self.leave_by() - LEAVE_RESERVE * self.grace_s
