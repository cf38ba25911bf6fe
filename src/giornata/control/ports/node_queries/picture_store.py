"""The store's interface for orders of pictures, their pictures, and leases of pictures.

Every method runs in the caller's transaction. Instants are epoch milliseconds of the server's clock. Rows are locked
in this order: jobs, attempts, picture_orders, pictures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from giornata.control.ports.node_queries.work_rows import AttemptRow, QueuedDemand
from giornata.domain.generation.picture import PictureState, SafetyPolicy
from giornata.domain.jobs.routing import PictureTurns


class PictureKey(NamedTuple):
    """One picture: its order, and its number in the order from 0."""

    order_id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRow:
    """A picture of an order.

    `differs` is what the picture has instead of its order's spec. `together` bounds the pictures of a lease that this
    picture is in. `lease` is the present or latest attempt. `place` counts the pictures of the order from 1 in the
    order in which they ended; numbers may be missing. `error` is why it failed, or was not drawn the last time.
    """

    order_id: str
    number: int
    project_id: str
    state: PictureState
    batch_key: str
    base_key: str
    turn: int
    priority: int
    seed: int
    differs: Mapping[str, Any]
    pixel_steps: int
    together: int
    min_vram_bytes: int = 0
    tries: int = 0
    fruitless: int = 0
    lease: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    flags: int = 0
    place: int | None = None
    error: str | None = None

    @property
    def key(self) -> PictureKey:
        """The order and the number."""
        return PictureKey(self.order_id, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureOrderRow:
    """An order of pictures besides its row in jobs. `ended` is the latest place that was given, and `told` the place
    up to which events have told of pictures."""

    order_id: str
    project_id: str
    priority: int
    pictures: int
    ended: int
    told: int
    told_at_ms: int
    ends_turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturesWanted:
    """The conditions of pictures that may be handed out in one lease.

    `project_id` None means every project's. With a `batch_key` only pictures of that key, otherwise only of `bases`,
    of which the first are wanted most. `failed_since_ms`: pictures that failed on this machine since then are left
    out, and so are those of the orders that are `passed_over`.
    """

    most: int
    bases: tuple[str, ...]
    machine_id: str
    project_id: str | None
    vram_bytes: int | None
    batch_key: str | None
    failed_since_ms: int
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseBill:
    """An order's share of a lease: its part of the node's price of an hour."""

    order_id: str
    project_id: str
    price_micro_usd_per_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureOutcome:
    """A result to store: the picture's state from now on, with the bytes or the error."""

    key: PictureKey
    state: PictureState
    sha256: str | None = None
    size_bytes: int | None = None
    flags: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseResults:
    """Results of pictures of one lease, of which no two are of one picture. `ends`: the lease succeeds with them."""

    attempt_id: str
    outcomes: Sequence[PictureOutcome]
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettled:
    """The outcome of a report for a live lease: the pictures whose results were stored, and all that the lease had to
    draw before."""

    machine_id: str
    stored: frozenset[PictureKey]
    had: tuple[PictureKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSpec:
    """The part of an order's row in jobs that its pictures are built from, and the policy of its project."""

    id: str
    kind: str
    spec: Mapping[str, Any]
    safety: SafetyPolicy = SafetyPolicy.OFF


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFrom:
    """Queued pictures of an order that machines failed to draw, and are not asked for again for a while.

    `first_at_ms` is the first of the failures. `error` is what a node said of one of the pictures.
    """

    pictures: int
    machines: int
    first_at_ms: int
    error: str | None


class PictureOrders(Protocol):
    """Queries for orders of pictures, and for pictures as users see them."""

    def turns(self, project_id: str, *, priority: int) -> PictureTurns:
        """Return the turns behind a new order's first turn."""

    def add_order(self, order: PictureOrderRow) -> None:
        """Insert what an order has besides its row in jobs, which is there already."""

    def add_pictures(self, pictures: Iterable[PictureRow]) -> None:
        """Insert pictures, a thousand in a statement."""

    def order(self, order_id: str, *, lock: bool = False) -> PictureOrderRow | None:
        """Return the order; with `lock` it is held until the transaction ends."""

    def counts(self, order_id: str) -> Mapping[PictureState, int]:
        """Count the order's pictures by state; states without any are left out."""

    def blocked(self, order_id: str) -> int:
        """Count the order's pictures that the safety checker blocked."""

    def first_error(self, order_id: str) -> str | None:
        """Return the error of the order's first picture that failed."""

    def kept_from(self, order_id: str, *, since_ms: int) -> KeptFrom | None:
        """Return the failures since then of the order's queued pictures; None when there is none."""

    def demand(self) -> list[QueuedDemand]:
        """Return what open orders ask of nodes, by the kind that a node offers: `PICTURES_LIKE_A_JOB` pictures count
        as one queued job. Pictures that wait for annotations ask for nodes that annotate, besides those that draw."""

    def note_told(self, order_id: str, *, told: int, at_ms: int) -> None:
        """Note that events have told of the order's pictures up to this place."""

    def untold(self, *, told_before_ms: int, limit: int) -> Sequence[str]:
        """Return ids of orders with ended pictures that no event told of, and whose last event is older than that."""

    def close_order(self, order_id: str, *, state: PictureState = PictureState.CANCELED) -> int:
        """Give all open pictures of the order this state; return how many. Turns that they had are given back, and
        failures forgotten."""

    def pause(self, order_ids: Sequence[str]) -> int:
        """Take the queued pictures of these orders off the queue; return how many."""

    def resume(self, order_ids: Sequence[str]) -> int:
        """Put the paused pictures of these orders into the queue; return how many."""

    def specs(self, order_ids: Sequence[str]) -> Mapping[str, OrderSpec]:
        """Return the orders' specs by id."""

    def page(self, order_id: str, *, project_id: str, after: int, limit: int) -> Sequence[PictureRow]:
        """Return pictures of the order whose number is above `after`, by number. Begin with -1."""

    def ended_after(self, order_id: str, *, project_id: str, place: int, limit: int) -> Sequence[PictureRow]:
        """Return ended pictures whose place is above `place`, by place. Begin with 0."""

    def ended_heads(self, order_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the place of the last ended picture of each of these orders; 0 without any."""


class PictureLeases(Protocol):
    """Queries for leases of pictures. Every write of a node is fenced by the lease and by the picture's state."""

    def claimable(self, wanted: PicturesWanted) -> bool:
        """Return True when `take` would find a picture. Changes and locks nothing."""

    def head_priority(self, wanted: PicturesWanted) -> int | None:
        """Return the highest priority of a picture that `take` would find; None when there is none."""

    def take(self, wanted: PicturesWanted, *, lease: str) -> list[PictureRow]:
        """Lease pictures of one batch key to the attempt `lease`: by priority, then of the base that is wanted most,
        then by turn."""

    def begin(self, attempt: AttemptRow, request_id: str, bills: Sequence[LeaseBill]) -> None:
        """Insert the attempt of a lease, and begin its bill: a row of the ledger for each order."""

    def extend_bills(self, attempt_ids: Sequence[str], *, to_ms: int) -> None:
        """Bill these leases up to `to_ms`; never less than they have been billed already."""

    def lock_orders(self, attempt_id: str) -> Sequence[str]:
        """Hold the orders of the pictures that the lease still has; return their ids. For whoever fails pictures."""

    def of_lease(self, attempt_id: str) -> list[PictureRow]:
        """Return the pictures that the lease still has to draw, by order and number."""

    def of_live_lease(self, attempt_id: str) -> list[PictureRow] | None:
        """Return the same of a lease that has not ended; None when it has, or never was."""

    def settle_each(self, given: Sequence[LeaseResults], *, at_ms: int) -> Mapping[str, LeaseSettled]:
        """Store outcomes of pictures that the leases still have, in one statement on PostgreSQL.

        Other outcomes change nothing. A lease that has ended, or never was, is left out of the answer. Leases that
        end here are billed up to `at_ms`, and their other pictures are queued again. No two entries of one lease.
        """

    def standing(self, attempt_id: str, keys: Sequence[PictureKey]) -> Mapping[PictureKey, str | None]:
        """Return the sha256 of those pictures that succeeded in this very lease, None for a blocked one."""

    def give_back(
        self,
        attempt_id: str,
        *,
        keys: Sequence[PictureKey] | None = None,
        together: int | None = None,
        fruitless: bool,
        error: str | None = None,
    ) -> list[PictureRow]:
        """Put pictures that the lease still has into the queue again, all or those of `keys`; return them as they are
        now. `together` bounds the size of their next lease. `fruitless` counts a lease that came to nothing. `error`
        says why they were not drawn; without it they keep what was said before.

        Pictures of an order that is paused become paused.
        """

    def awaiting(self, batch_key: str, *, lease: str) -> list[PictureRow]:
        """Return the pictures of this batch key that are queued, or that the lease has, by order and number. They are
        held; pictures that somebody else holds are left out."""

    def queue_as(self, keys: Sequence[PictureKey], *, batch_key: str, base_key: str) -> None:
        """Queue these pictures under other keys, or pause those of a paused order. They must be held, and queued, or
        in a lease, which loses them."""

    def give_back_rest(self, attempt_ids: Sequence[str]) -> int:
        """Put all pictures that these leases still have into the queue again; return how many."""

    def note_failures(
        self, keys: Sequence[PictureKey], *, machine_id: str, at_ms: int, tries: int, min_vram_bytes: int = 0
    ) -> list[PictureRow]:
        """Note that the machine could not draw these pictures; add to their tries, raise what memory they need;
        return them as they are now. The machine does not get them for a while."""

    def fail(self, keys: Sequence[PictureKey], *, error: str) -> None:
        """Fail queued or paused pictures, each at a place of its order, which must be held."""
