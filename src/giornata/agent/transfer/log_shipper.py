"""A thread that sends the log lines and metrics of an attempt in batches."""

import collections
import logging
import math
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from giornata.agent.attempt.lease import LeaseCalls
from giornata.client.node import NodeClient
from giornata.domain.errors import GiornataError, LeaseLost
from giornata.protocol.node.work import LogLines, MetricBatch, StepMetrics

log = logging.getLogger(__name__)
T = TypeVar("T")

FLUSH_EVERY_S = 2.0
KEPT = 5000
BATCH = 500
LONGEST_LINE = 4000
MOST_METRICS = 64


class Backlog(Generic[T]):
    """Keeps numbered items that wait to be sent. The oldest are dropped when there are too many. Thread-safe."""

    def __init__(self, kept: int = KEPT) -> None:
        self._waiting: collections.deque[T] = collections.deque(maxlen=kept)
        self._added = 0
        self._lock = threading.Lock()

    def add(self, item: T) -> None:
        """Append an item. Its number is the count of items before it."""
        with self._lock:
            self._waiting.append(item)
            self._added += 1

    @property
    def added(self) -> int:
        """The count of all items so far."""
        with self._lock:
            return self._added

    def batch(self, most: int = BATCH) -> tuple[int, tuple[T, ...]]:
        """Return the number of the oldest item, and as many items as one request may hold."""
        with self._lock:
            return self._added - len(self._waiting), tuple(self._waiting)[:most]

    def sent(self, until: int) -> None:
        """Drop the items numbered below `until`: they have arrived."""
        with self._lock:
            while self._waiting and self._added - len(self._waiting) < until:
                self._waiting.popleft()


class LogShipper:
    """Ships lines and metrics. When the server is away for long, the oldest are dropped.

    A line keeps its number within the attempt, so that a batch sent twice adds nothing and a gap can be seen.
    """

    def __init__(self, node: NodeClient, calls: LeaseCalls, *, flush_every_s: float = FLUSH_EVERY_S) -> None:
        self._node, self._calls, self._flush_every_s = node, calls, flush_every_s
        self._lines, self._points = Backlog[str](), Backlog[StepMetrics]()
        self._sending = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-shipper", daemon=True)

    def start(self) -> None:
        """Send every few seconds from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread at its next turn. `flush` still works."""
        self._stopped.set()

    def line(self, text: str) -> None:
        """Add to the log; a text of several lines counts as several."""
        for each in text.splitlines() or [""]:
            self._lines.add(each[:LONGEST_LINE])

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Add the metrics of a step; numbers that are not finite have no JSON and are left out."""
        finite = {name: value for name, value in list(values.items())[:MOST_METRICS] if math.isfinite(value)}
        self._points.add(StepMetrics(step=step, values=finite))

    def flush(self) -> None:
        """Send everything that waits. What does not arrive by a passing error is sent again next time."""
        for send in (self.deliver_lines, self.deliver_points):
            try:
                send()
            except LeaseLost:
                return
            except GiornataError as error:
                log.warning("log and metrics: %s", error)

    def deliver_lines(self) -> None:
        """Send every line that is there now. Raises LeaseLost, and a retryable error when a line has not arrived."""
        with self._sending:
            self._send(self._lines, self._send_lines)

    def deliver_points(self) -> None:
        """Send the metrics of every step that is there now; nothing when there are none.

        Raises LeaseLost, and a retryable error when a point has not arrived.
        """
        with self._sending:
            self._send(self._points, self._send_points)

    def _send(self, backlog: Backlog[T], send: Callable[[int, tuple[T, ...]], None]) -> None:
        end = backlog.added  # an engine that is faster than the server adds without end
        while True:
            first, items = backlog.batch()
            if not items or first >= end:
                return
            try:
                send(first, items)
            except LeaseLost:
                raise
            except GiornataError as error:
                if error.retryable:
                    raise
                # Refused for good: it must not keep what comes after it from arriving.
                log.warning("log and metrics: %s", error)
            backlog.sent(first + len(items))

    def _send_lines(self, first: int, lines: tuple[str, ...]) -> None:
        self._calls.once(lambda lease: self._node.log(lease, LogLines(first=first, lines=lines)))

    def _send_points(self, _: int, points: tuple[StepMetrics, ...]) -> None:
        self._calls.once(lambda lease: self._node.metrics(lease, MetricBatch(points=points)))

    def _run(self) -> None:
        while not self._stopped.wait(self._flush_every_s):
            self.flush()
