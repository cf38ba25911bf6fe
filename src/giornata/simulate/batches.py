"""Requests of many nodes at one instant go to the control plane together, as the server's queues would send them."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from giornata.simulate.agenda import Agenda
from giornata.simulate.draws import rng
from giornata.simulate.plane import (
    ClaimRequest,
    Grant,
    HeartbeatAnswer,
    Nothing,
    ServerAway,
    SimulatedControlPlane,
    SimulatedProgress,
)
from giornata.simulate.work import SimulatedAttempt

LATE = 10  # after everything else of the instant
MOST_AT_ONCE = 500
MOST_BACKOFF_S = 60.0  # of claims, as the agent has it


class BatchedNode(Protocol):
    """The calls to a node whose requests are sent in batches."""

    id: str
    number: int
    alive: bool
    reachable: bool
    work: SimulatedAttempt | None
    request: int

    def asked(self) -> ClaimRequest:
        """Return its request for work."""

    def granted(self, grant: Grant) -> None:
        """Begin an attempt of the granted job."""

    def refused(self, nothing: Nothing) -> None:
        """Learn that no work is there."""

    def progress(self) -> SimulatedProgress:
        """Return what it reports in a heartbeat."""

    def heard(self, answer: HeartbeatAnswer) -> None:
        """Obey the answer to a heartbeat."""

    def unheard(self) -> None:
        """Learn that a heartbeat had no answer."""


class RequestBatches:
    """Beats by phase, claims by instant.

    `phases` is over how many moments of a beat's period the nodes are spread: 1 makes all of them beat together,
    which costs least to simulate; more shows how the load of the server is spread. Every call counts as one request
    of its second, answered or not.
    """

    def __init__(
        self,
        agenda: Agenda,
        plane: SimulatedControlPlane,
        *,
        beat_s: float,
        poll_s: float,
        phases: int,
        seed: int,
        note_beat: Callable[[BatchedNode], None],
    ) -> None:
        self._agenda, self._plane, self._seed = agenda, plane, seed
        self._beat_ms, self._poll_s, self._phases = round(beat_s * 1000), poll_s, phases
        self._note_beat = note_beat
        self._beating: list[dict[int, BatchedNode]] = [{} for _ in range(phases)]
        self._asking: dict[int, BatchedNode] = {}
        self._waiting: dict[int, BatchedNode] = {}
        self._flush_due = self._poll_due = False
        self._backoff: dict[int, Iterator[float]] = {}
        self.requests: Counter[int] = Counter()  # by second
        self.refusals: Counter[str] = Counter()  # claims that got nothing, by why
        for phase in range(phases):
            self._agenda.after((phase + 1) * beat_s / phases, self._beater(phase), order=LATE)

    # ---- beats ----

    def keep_beating(self, node: BatchedNode) -> None:
        """Let the node send heartbeats from now on."""
        self._beating[node.number % self._phases][node.number] = node

    def hush(self, node: BatchedNode) -> None:
        """Stop the node's heartbeats: it has no attempt."""
        self._beating[node.number % self._phases].pop(node.number, None)

    def _beater(self, phase: int) -> Callable[[], None]:
        def beat() -> None:
            self._agenda.at(self._agenda.now_ms() + self._beat_ms, beat, order=LATE)
            nodes = list(self._beating[phase].values())
            for batch in _batches(nodes):
                self._beat(batch)

        return beat

    def _beat(self, nodes: list[BatchedNode]) -> None:
        silent = [node for node in nodes if not node.reachable]
        nodes = [node for node in nodes if node.reachable and node.work is not None]
        self.count(len(nodes))
        try:
            answers = self._plane.beat([node.progress() for node in nodes]) if nodes else []
        except ServerAway:
            silent += nodes
            nodes, answers = [], []
        for node, answer in zip(nodes, answers, strict=True):
            self._note_beat(node)
            node.heard(answer)
        for node in silent:
            node.unheard()

    # ---- claims ----

    def ask(self, node: BatchedNode) -> None:
        """Claim work for the node at the end of this instant."""
        self._asking[node.number] = node
        self._flush_soon()

    def forget(self, node: BatchedNode) -> None:
        """Remove a node that no longer exists."""
        self.hush(node)
        for each in (self._asking, self._waiting, self._backoff):
            each.pop(node.number, None)

    def wake(self) -> None:
        """Answer all waiting nodes after a change of the queue, as the server's long polls do."""
        if self._waiting:
            self._asking.update(self._waiting)
            self._waiting.clear()
            self._flush_soon()

    @property
    def waiting(self) -> int:
        """The number of nodes that wait for work."""
        return len(self._waiting) + len(self._asking)

    def count(self, requests: int) -> None:
        """Count requests that are made now."""
        if requests:
            self.requests[self._agenda.now_ms() // 1000] += requests

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._agenda.after(0.0, self._flush, order=LATE)

    def _flush(self) -> None:
        self._flush_due = False
        asking, self._asking = list(self._asking.values()), {}
        for batch in _batches([node for node in asking if node.alive and node.work is None]):
            self._claim(batch)

    def _claim(self, nodes: list[BatchedNode]) -> None:
        self.count(len(nodes))
        try:
            answers = self._plane.claim([node.asked() for node in nodes])
        except ServerAway:
            for node in nodes:
                self._ask_later(node)
            return
        for node, answer in zip(nodes, answers, strict=True):
            self._backoff.pop(node.number, None)
            node.request += 1
            if isinstance(answer, Nothing):
                self.refusals[answer.reason] += 1
                if not answer.leave:
                    self._waiting[node.number] = node
                    self._poll_later()
                node.refused(answer)
            else:
                node.granted(answer)

    def _ask_later(self, node: BatchedNode) -> None:
        delays = self._backoff.setdefault(node.number, _delays_s(rng(self._seed, "backoff", node.id)))
        self._agenda.after(next(delays), lambda: self.ask(node) if node.alive and node.work is None else None)

    def _poll_later(self) -> None:
        if not self._poll_due:
            self._poll_due = True
            self._agenda.after(self._poll_s, self._poll, order=LATE)

    def _poll(self) -> None:
        self._poll_due = False
        self.wake()


def _delays_s(draw: random.Random) -> Iterator[float]:
    """Yield the agent's doubling delays with jitter; the simulator may not import `giornata.client.retry`."""
    bound_s = 1.0
    while True:
        yield draw.uniform(bound_s / 2, bound_s)
        bound_s = min(MOST_BACKOFF_S, bound_s * 2)


def _batches(nodes: list[BatchedNode]) -> Iterator[list[BatchedNode]]:
    rest = iter(nodes)
    while batch := list(itertools.islice(rest, MOST_AT_ONCE)):
        yield batch
