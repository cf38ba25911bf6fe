"""How a schedule calls a use case: it may die on the way, be repeated at once, and must answer as the rules say."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.contract.model.invariants import InvariantChecker
from tests.contract.model.model_rig import ModelRig, NodePlace
from tests.contract.model.sudden_death import Died

from giornata.domain.errors import (
    BlobMissing,
    Conflict,
    GiornataError,
    IdempotencyMismatch,
    LeaseLost,
    NotFound,
    OverBudget,
)
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.pictures import LeasedPicture, PictureResultsReply
from giornata.protocol.node.work import ClaimReply, Committed
from giornata.protocol.uploads import UploadTicket

# What may be answered to somebody; all else is a fault of the rig.
REFUSALS = (BlobMissing, Conflict, NotFound, IdempotencyMismatch, OverBudget)
DIED = Died()
MOST_LEASES = 4
"""Of a node here, which has one place."""


@dataclass(slots=True, kw_only=True)
class TrackedLease:
    """A lease that a node was told of. It may be dead for long: its node need not know."""

    attempt_id: str
    job_id: str
    number: int
    project: str
    token: str
    place: NodePlace
    artifacts: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPictures:
    """A lease of pictures that a node was told of. It may be dead for long."""

    attempt_id: str
    place: NodePlace
    pictures: tuple[LeasedPicture, ...]
    wanted_annotations: tuple[str, ...] = ()
    only_annotates: bool = False


@dataclass(slots=True, kw_only=True)
class Ticket:
    """A place for bytes that somebody was given."""

    held: TrackedLease
    ticket: UploadTicket
    data: bytes


@dataclass(slots=True, kw_only=True)
class Submitted:
    """A request with an Idempotency-Key, and what it made."""

    project: str
    request: SubmitJob
    key: str
    job_id: str
    at_ms: int


@dataclass(slots=True)
class Actors:
    """What nodes and users know, all of them together. Threads only append to it."""

    held: list[TrackedLease] = field(default_factory=list)
    audit_runs: list[TrackedLease] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[NodePlace, int, str, str | None]] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    submitted: list[Submitted] = field(default_factory=list)
    orders: list[tuple[str, str]] = field(default_factory=list)  # id, project; no order is among the jobs
    picture_requests: list[tuple[NodePlace, str, int]] = field(default_factory=list)
    picture_leases: list[HeldPictures] = field(default_factory=list)
    jobs: list[tuple[str, str]] = field(default_factory=list)  # id, project
    ending: list[str] = field(default_factory=list)  # ids of jobs of the project ENDING, which are not among the jobs
    pins: list[str] = field(default_factory=list)  # of that project: what somebody was told is pinned
    focus: str | None = None  # the job of that project that most of them care for just now
    calls: list[Callable[[], Any]] = field(default_factory=list)
    incarnations: dict[int, int] = field(default_factory=dict)
    muted_until: dict[int, int] = field(default_factory=dict)  # place → the actors's operation number
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    operations: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    deaths: int = 0
    latest_ms: int = 0  # the highest that the server's clock ever showed, before somebody set it back
    repeats: int = 0  # deliveries besides the operations: at once, or after a death
    guard: threading.Lock = field(default_factory=threading.Lock)


class CheckedCalls:
    """`exact` says that nobody else is at work: then every answer can be foretold."""

    def __init__(self, rig: ModelRig, actors: Actors, checker: InvariantChecker, *, exact: bool) -> None:
        self.rig, self.actors, self.checker, self.exact = rig, actors, checker, exact
        self.dying: int | None = None  # statements and commits that there are to live

    @property
    def ctx(self) -> Any:
        return self.rig.ctx

    def is_full(self, node_id: str) -> bool:
        """Whether the node holds as many leases as it may; of no node while others are at work."""
        held = [it for it in self.checker.now.attempts if it.node_id == node_id] if self.exact else []
        return sum(it.ended_at_ms is None and not it.lapsed for it in held) >= MOST_LEASES

    def call(self, action: Callable[[], Any], *, again: bool = False, lasting: bool = False, several: int = 1) -> Any:
        """What it returned, the refusal that it raised, or DIED.

        `again`: it may be repeated without a difference, so repeat it now. `lasting`: it may come once more, later.
        `several`: how many operations it is.
        """
        with self.actors.guard:
            self.actors.operations += several
        outcome = self._outcome(action, mortal=True)
        if lasting:
            self.actors.calls.append(action)
        if outcome is DIED or (again and self.exact):
            self._repeat(action, outcome)
        return outcome

    def _repeat(self, action: Callable[[], Any], outcome: Any) -> None:
        """After a death the call is made once more, as its sender would; otherwise nothing may come of it."""
        with self.actors.guard:
            self.actors.repeats += 1
            self.actors.deaths += outcome is DIED
        if outcome is DIED:
            if self.exact:
                self.checker.look(whole=True)
            self._outcome(action)
            return
        self.checker.look()
        repeated = self._outcome(action)
        if isinstance(outcome, GiornataError):
            assert isinstance(repeated, GiornataError), f"{outcome!r}, but when repeated {repeated}"
            return
        self.unchanged()
        assert _essence(repeated) == _essence(outcome), f"{outcome}, but when repeated {repeated!r}"

    def _outcome(self, action: Callable[[], Any], *, mortal: bool = False) -> Any:
        self.rig.death.left = self.dying if mortal else None
        try:
            outcome = action()
            self._count_refusals(outcome if isinstance(outcome, list) else ())
            return outcome
        except Died:
            return DIED
        except REFUSALS as refusal:
            self._count_refusals([refusal])
            return refusal
        finally:
            if mortal:
                # Whoever has not died yet dies in one of the calls to come.
                self.dying = self.rig.death.left
            self.rig.death.left = None

    def _count_refusals(self, answers: Sequence[Any]) -> None:
        with self.actors.guard:
            self.actors.refusals.update(it.code for it in answers if isinstance(it, GiornataError))

    def write(
        self,
        held: TrackedLease | HeldPictures,
        action: Callable[[], Any],
        *,
        must: bool = True,
        end: Reason | None = None,
        again: bool = False,
    ) -> Any:
        """A write of a node. One whose attempt has ended changes nothing; one whose attempt lives `must` succeed.

        `end` is the reason that the write gives for the attempt's end; one that ended so is told the same again.
        """
        if self.muted(held.place):
            return None
        attempt = self.checker.attempts.get(held.attempt_id) if self.exact else None
        late = self.late(held)
        outcome = self.call(action, again=again, lasting=True)
        if attempt is None or outcome is DIED:
            return outcome
        if attempt.ended_at_ms is not None:
            obeyed = end == Reason.RELEASED and attempt.reason == attempt.order_reason
            alike = end is not None and (attempt.reason == end or obeyed)
            told_again = alike and not isinstance(outcome, GiornataError)
            assert told_again or isinstance(outcome, LeaseLost), f"{outcome!r} to {attempt}, which has ended"
            self.unchanged()
        elif must and not (isinstance(outcome, LeaseLost) and late is not None):
            assert not isinstance(outcome, GiornataError), f"{outcome!r} to {attempt}, which lives"
        return outcome

    def late(self, held: TrackedLease | HeldPictures) -> Reason | None:
        """Why its node was told to give the job back, when it had its time to do so and has not done it."""
        attempt = self.checker.attempts.get(held.attempt_id) if self.exact else None
        if attempt is None or attempt.ended_at_ms is not None or attempt.order_reason is None:
            return None
        told_ms = self.rig.clock.now_ms() - (attempt.ordered_at_ms or self.rig.clock.now_ms())
        return Reason(attempt.order_reason) if told_ms >= self.ctx.policy.stop_grace_s * 1000 else None

    def muted(self, place: NodePlace) -> bool:
        """Whether nothing that this node sends arrives."""
        return self.actors.muted_until.get(place.number, 0) > self.actors.operations

    def unchanged(self) -> None:
        """Nothing was written since the last look."""
        if self.exact:
            self.checker.unchanged()


def _essence(outcome: Any) -> Any:
    """What has to be alike: that a commit was superfluous the second time is just what it should say."""
    if isinstance(outcome, Committed):
        return outcome.sha256, outcome.size_bytes
    if isinstance(outcome, ClaimReply):
        # Not why there was nothing: the look before a claim counts all kinds, the claim those that it may begin; and
        # of several claims what waited for one may have gone to another.
        return outcome.lease, outcome.picture_lease
    if isinstance(outcome, PictureResultsReply):
        return outcome.accepted, outcome.dropped
    if isinstance(outcome, list):
        return [_essence(it) for it in outcome]
    if isinstance(outcome, GiornataError):
        return type(outcome)
    if isinstance(outcome, int):
        return None  # how many a loop dealt with
    return outcome
