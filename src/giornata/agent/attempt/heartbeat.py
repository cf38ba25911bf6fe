"""The heartbeat: a thread of its own, so that no download, upload or export delays it."""

import logging
import random
import threading
from collections.abc import Callable

from giornata.agent.attempt.lease import LocalLease
from giornata.client.node import NodeClient
from giornata.client.retry import Monotonic, delays_s
from giornata.domain.errors import GiornataError
from giornata.protocol.node.work import Heartbeat, Order

log = logging.getLogger(__name__)

SOONEST_S = 1.0


class HeartbeatThread:
    """Renews the lease until it is lost or `stop` is called.

    `snapshot` returns the body of a heartbeat. `ordered` is called when the server wants something else than to go
    on. `is_alive` tells whether the attempt's own loop still turns. A heartbeat is proof of work on the job: when the
    loop hangs, the heartbeats end, and the lease with them. While `is_ending` says that a report is under way that
    ends the lease, a refusal says nothing: the report's reply does.
    """

    def __init__(
        self,
        *,
        node: NodeClient,
        held: LocalLease,
        snapshot: Callable[[], Heartbeat],
        is_alive: Callable[[], bool],
        ordered: Callable[[Order], None],
        monotonic_s: Monotonic,
        rng: random.Random,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_ending = is_ending
        self._node, self._held, self._snapshot, self._is_alive = node, held, snapshot, is_alive
        self._ordered, self._monotonic_s, self._rng = ordered, monotonic_s, rng
        self._every_s = held.lease.renew_every_s
        self._delays = delays_s(rng, most_s=max(SOONEST_S, self._every_s))
        self._last_beat_s = float("-inf")
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._first_s = 0.0
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self, *, after_s: float) -> None:
        """Start the thread. The first heartbeat comes after so many seconds."""
        self._first_s = after_s
        self._thread.start()

    def stop(self) -> None:
        """End the thread at its next turn. A heartbeat on its way is not waited for: its reply changes nothing."""
        self._stopped.set()
        self._wake.set()

    def nudge(self) -> None:
        """Send a heartbeat soon, though never two within a second."""
        self._wake.set()

    def beat(self) -> float:
        """Send one heartbeat. Returns the seconds to wait before the next."""
        if not self._is_alive():
            return SOONEST_S
        sent_at_s = self._last_beat_s = self._monotonic_s()
        try:
            reply = self._node.heartbeat(self._held.lease, self._snapshot())
        except GiornataError as error:
            if error.retryable:
                log.warning("heartbeat: %s", error)
                return next(self._delays)
            if not self._is_ending():
                self._held.lose(f"the server refuses the heartbeat: {error}")
            return SOONEST_S
        self._delays = delays_s(self._rng, most_s=max(SOONEST_S, reply.renew_every_s))
        self._held.renewed(sent_at_s=sent_at_s, lease_s=reply.lease_s)
        self._every_s = reply.renew_every_s
        if reply.order is not Order.CONTINUE:
            self._ordered(reply.order)
        return self._every_s

    def _run(self) -> None:
        wait_s = self._first_s
        try:
            while not self._stopped.is_set():
                if self._wake.wait(wait_s):
                    self._stopped.wait(max(0.0, self._last_beat_s + SOONEST_S - self._monotonic_s()))
                self._wake.clear()
                if self._stopped.is_set() or self._held.why_lost() is not None:
                    return
                wait_s = self.beat()
        except Exception as error:
            # The supervisor of this thread: without beats the job would be lost later and less clearly.
            log.exception("the heartbeat thread stopped")
            self._held.lose(f"the heartbeat failed: {error}")
