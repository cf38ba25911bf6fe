"""The memory of one server process between requests, so that the hottest need not ask the database again.

Nothing here is ever the truth: each thing is bounded in age or never changes, and forgetting it costs a query.
"""

import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from giornata.control.caller import Caller
from giornata.control.memory.known_sessions import KnownSessions
from giornata.control.memory.quota_memory import QuotaMemory
from giornata.control.ports.node_queries.gauges import EndedTotals, Gauges
from giornata.control.ports.node_queries.picture_store import OrderSpec, PictureKey
from giornata.control.ports.node_queries.routing_store import BaseQueue
from giornata.domain.billing.budget import Budget, Spent
from giornata.domain.errors import Unavailable
from giornata.domain.generation.fleet_models import FleetModels
from giornata.domain.generation.large_files import LargeFiles
from giornata.domain.generation.suspect_models import SuspectModels
from giornata.domain.machines.stragglers import Trail

MOST_CALLERS = 4096
MOST_MEASURED_JOBS = 4096
MOST_ORDERS = 4096
MOST_LEASES = 4096
MOST_QUEUES = 256
MOST_LORAS = 16_384
ORDER_SPEC_MS = 60_000
"""Milliseconds for which an order's spec is remembered. It never changes; the project's policy beside it may."""
REFUTATIONS_MS = 10_000
"""Milliseconds for which sums of money may miss that an audit moved bills to another project."""
READERS = 2
FETCHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The cost of a project's attempts that ended before `before_ms`, long enough ago for nothing to be missed.

    The month in `spent` is the one that began at `month_ms`. `refutations` were read before the sum: audits that find
    a machine guilty afterwards move bills to another project.
    """

    before_ms: int
    month_ms: int
    spent: Spent
    refutations: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempts:
    """The sums over attempts that ended before `before_ms`, long enough ago for nothing to be missed."""

    before_ms: int
    totals: EndedTotals


@dataclass(slots=True)
class MetricNames:
    """The names of a job's metrics. `complete`: also those from before this process heard of the job."""

    names: set[str] = field(default_factory=set)
    complete: bool = False


class OneFetchEach:
    """Lets one thread fetch a thing at a time, and FETCHES threads in all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fetched: set[Hashable] = set()

    @contextmanager
    def one(self, what: Hashable) -> Iterator[None]:
        """Fetch the thing inside the context. Raises Unavailable when it, or too much else, is being fetched."""
        with self._lock:
            if what in self._fetched:
                raise Unavailable("the server is fetching this model; try again in a minute")
            if len(self._fetched) >= FETCHES:
                raise Unavailable(f"{FETCHES} other models are being fetched; try again in a minute")
            self._fetched.add(what)
        try:
            yield
        finally:
            with self._lock:
                self._fetched.discard(what)


class ProcessCache:
    """Remembers values of one process; may be used from any thread. Instants are epoch milliseconds of the server's
    clock.
    """

    def __init__(self) -> None:
        self.signing_key: bytes | None = None  # written once, by the installation, and never changed
        # At most READERS threads read whole objects again that a node reported as unusable.
        self.readers = threading.BoundedSemaphore(READERS)
        self.fetches = OneFetchEach()  # of models from outside
        self.fleet_models = FleetModels()
        self.large_files = LargeFiles()
        self.suspect_models = SuspectModels()
        self._sound_loras: set[str] = set()
        self.quotas = QuotaMemory()
        self.sessions = KnownSessions()
        self._lock = threading.Lock()
        self._callers: dict[str, tuple[Caller, range]] = {}
        self._standing: dict[str, range] = {}  # when those who stay were found good, by id
        self._generation = 0
        self._mtbi: tuple[float, int] | None = None
        self.gauges_lock = threading.Lock()  # held while the gauges are read and remembered
        self._gauges: tuple[Gauges, int] | None = None
        self._settled: dict[str | None, Settled] = {}
        self._refutations: tuple[tuple[int, int], int] | None = None
        self.ended_attempts: EndedAttempts | None = None  # read and written by the gauges only
        # Of all projects, the most used up first; None: no loop has looked. Only the loop `budgets` writes them.
        self.project_budgets: Sequence[tuple[str, Budget]] | None = None
        self._measured: dict[str, MetricNames] = {}
        self._awake: tuple[int, int] | None = None  # since when, and the latest look
        self.order_generation = 0  # changes when specs of orders are forgotten
        self._order_specs: dict[str, tuple[OrderSpec, int]] = {}
        self._begun_orders: set[str] = set()
        self._settled_orders: dict[str, int] = {}
        self._base_queues: dict[str | None, tuple[Sequence[BaseQueue], int]] = {}
        self._leases: dict[str, tuple[Mapping[PictureKey, str], int]] = {}
        self.fleet_time_rests = range(0)  # while the loop `fleet-time`, which alone writes it, does not add up
        # How far each live attempt was when, by its id. Only the loop `stragglers` reads and writes them.
        self.trails: dict[str, Trail] = {}

    def is_sound_lora(self, sha256: str) -> bool:
        """Return True for a LoRA whose header this process has found to be one that nodes can draw with."""
        return sha256 in self._sound_loras

    def note_sound_lora(self, sha256: str) -> None:
        """Remember that nodes can draw with a LoRA. Its bytes never change."""
        with self._lock:
            if len(self._sound_loras) >= MOST_LORAS:
                self._sound_loras.clear()
            self._sound_loras.add(sha256)

    @property
    def generation(self) -> int:
        """The number that changes whenever callers are forgotten.

        A reader of a key takes the number before it reads, and hands it in with what it read.
        """
        return self._generation

    def caller(self, secret_sha256: str, *, at_ms: int) -> Caller | None:
        """Return the caller that this secret was found to belong to a moment ago."""
        found = self._callers.get(secret_sha256)
        return found[0] if found is not None and at_ms in found[1] else None

    def remember_caller(self, secret_sha256: str, caller: Caller, *, while_ms: range, generation: int) -> None:
        """Remember the caller of this secret while the clock shows one of `while_ms`.

        Do nothing if callers were forgotten since `generation`: what was read may be out of date already.
        """
        with self._lock:
            if generation != self._generation:
                return
            if len(self._callers) >= MOST_CALLERS:
                self._callers.clear()
            self._callers[secret_sha256] = (caller, while_ms)

    def stands(self, caller_id: str, *, at_ms: int) -> bool:
        """Return True when the key, or the session in a project, was found good a moment ago."""
        return at_ms in self._standing.get(caller_id, ())

    def remember_standing(self, caller_id: str, *, while_ms: range, generation: int) -> None:
        """Remember a caller of whom only the id is known, as `remember_caller` does."""
        with self._lock:
            if generation != self._generation:
                return
            if len(self._standing) >= MOST_CALLERS:
                self._standing.clear()
            self._standing[caller_id] = while_ms

    def forget_callers(self) -> None:
        """Forget all callers because a key or session ended here: nobody is let in, or stays, on earlier readings."""
        with self._lock:
            self._generation += 1
            self._callers.clear()
            self._standing.clear()
        self.sessions.forget()

    def mtbi_s(self, *, at_ms: int, kept_ms: int) -> float | None:
        """Return the fleet's mean time between interruptions, in seconds, if it was found at most `kept_ms` ago."""
        found = self._mtbi
        return found[0] if found is not None and 0 <= at_ms - found[1] < kept_ms else None

    def remember_mtbi(self, mtbi_s: float, *, at_ms: int) -> None:
        """Remember the mean time between interruptions; of two threads that find it at once the later wins."""
        self._mtbi = (mtbi_s, at_ms)

    def gauges(self, *, at_ms: int, kept_ms: int) -> Gauges | None:
        """Return the gauges of the installation, if they were read at most `kept_ms` ago."""
        found = self._gauges
        return found[0] if found is not None and 0 <= at_ms - found[1] < kept_ms else None

    def remember_gauges(self, gauges: Gauges, *, at_ms: int) -> None:
        """Remember the gauges of the installation."""
        self._gauges = (gauges, at_ms)

    def settled(self, project_id: str | None) -> Settled | None:
        """Return the sum that was last worked out for this project."""
        return self._settled.get(project_id)

    def remember_settled(self, project_id: str | None, settled: Settled) -> None:
        """Remember the project's sum; of two threads that work it out at once the later wins."""
        self._settled[project_id] = settled

    def refutations(self, *, at_ms: int) -> tuple[int, int] | None:
        """Return the number and the latest of the audits that found a machine guilty, as read a moment ago."""
        found = self._refutations
        return found[0] if found is not None and 0 <= at_ms - found[1] < REFUTATIONS_MS else None

    def remember_refutations(self, refutations: tuple[int, int], *, at_ms: int) -> None:
        """Remember the refutations; of two threads that read them at once the later wins."""
        self._refutations = (refutations, at_ms)

    def forget_refutations(self) -> None:
        """Forget the refutations: an audit was decided here."""
        self._refutations = None

    def order_spec(self, order_id: str, *, at_ms: int) -> OrderSpec | None:
        """Return the spec of an order of pictures as it was read a moment ago."""
        found = self._order_specs.get(order_id)
        return found[0] if found is not None and 0 <= at_ms - found[1] < ORDER_SPEC_MS else None

    def remember_order_spec(self, spec: OrderSpec, *, at_ms: int, generation: int) -> None:
        """Remember the spec of an order of pictures, unless specs were forgotten since `generation`."""
        with self._lock:
            if generation != self.order_generation:
                return
            if len(self._order_specs) >= MOST_ORDERS:
                self._order_specs.clear()
            self._order_specs[spec.id] = spec, at_ms

    def forget_order_specs(self) -> None:
        """Forget all specs, because what a project does with unsafe pictures was changed here."""
        with self._lock:
            self.order_generation += 1
            self._order_specs.clear()

    def base_queues(self, project_id: str | None, *, at_ms: int, kept_ms: int) -> Sequence[BaseQueue] | None:
        """Return the bases that pictures wait for, if they were read less than `kept_ms` ago."""
        found = self._base_queues.get(project_id)
        return found[0] if found is not None and 0 <= at_ms - found[1] < kept_ms else None

    def remember_base_queues(self, project_id: str | None, queues: Sequence[BaseQueue], *, at_ms: int) -> None:
        """Remember the bases that pictures wait for, of all projects or of one."""
        with self._lock:
            if len(self._base_queues) >= MOST_QUEUES:
                self._base_queues.clear()
            self._base_queues[project_id] = queues, at_ms

    def pictures_of_lease(self, attempt_id: str, *, at_ms: int) -> Mapping[PictureKey, str] | None:
        """Return the projects of the pictures that a lease of this process got a moment ago; None for others."""
        found = self._leases.get(attempt_id)
        return found[0] if found is not None and at_ms < found[1] else None

    def remember_lease(self, attempt_id: str, projects: Mapping[PictureKey, str], *, until_ms: int) -> None:
        """Remember the projects of the pictures that a lease has, until it would run out."""
        with self._lock:
            if len(self._leases) >= MOST_LEASES:
                self._leases.clear()
            self._leases[attempt_id] = projects, until_ms

    def forget_lease(self, attempt_id: str) -> None:
        """Forget a lease that has ended."""
        self._leases.pop(attempt_id, None)

    def begins(self, order_id: str) -> bool:
        """Return True when this process has not been asked about this order's begin before."""
        with self._lock:
            if order_id in self._begun_orders:
                return False
            if len(self._begun_orders) >= MOST_ORDERS:
                self._begun_orders.clear()
            self._begun_orders.add(order_id)
            return True

    def may_settle(self, order_id: str, *, at_ms: int, every_ms: int) -> bool:
        """Return True at most once in `every_ms` for an order, and then remember that it was settled at `at_ms`."""
        with self._lock:
            if 0 <= at_ms - self._settled_orders.get(order_id, -every_ms) < every_ms:
                return False
            if len(self._settled_orders) >= MOST_ORDERS:
                self._settled_orders.clear()
            self._settled_orders[order_id] = at_ms
            return True

    def metric_names(self, job_id: str) -> MetricNames:
        """Return the known names of a job's metrics. Only the holder of the job's row may change them."""
        found = self._measured.get(job_id)
        if found is None:
            with self._lock:
                if len(self._measured) >= MOST_MEASURED_JOBS:
                    self._measured.clear()
                found = self._measured.setdefault(job_id, MetricNames())
        return found

    def awake_since_ms(self, *, at_ms: int, break_ms: int) -> int:
        """Note a look at the fleets; return since when this process has looked without a break longer than
        `break_ms`.

        A node that was not heard of before has not been silent: nobody listened.
        """
        with self._lock:
            since_ms, latest_ms = self._awake or (at_ms, at_ms)
            since_ms = at_ms if at_ms - latest_ms > break_ms else since_ms
            self._awake = (since_ms, at_ms)
            return since_ms
