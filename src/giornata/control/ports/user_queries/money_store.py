"""The store's interface for budgets and reports of costs. Money is integer micro-dollars, instants epoch ms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from giornata.control.ports.user_queries.records import FinishedRecord
from giornata.domain.billing.accounting import Run
from giornata.domain.billing.budget import Payer, ProjectLimits, Spent
from giornata.domain.billing.costs import Billed, Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedJob:
    """A job that was moved out of the queue, or back into it."""

    job_id: str
    kind: str
    committed_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledHost:
    """A billed host: an instance of a provider, or a node that no provider lists.

    `billed` are the intervals at one price, in order; the last ends with the last sign of life, if it goes on.
    `ready_at_ms` is when it first asked for work, None when it never did.
    """

    key: str
    fleet: str
    billed: tuple[Billed, ...]
    ready_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StayRecord:
    """An attempt on a host, with the intervals that its job is billed for."""

    host_key: str
    run: Run
    intervals: tuple[Interval, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRecord:
    """An attempt and what one of its jobs pays for it, of the node's price.

    A lease of pictures has a record for each of its orders, and no steps. `job_succeeded` is False for an attempt
    that did not end the job well itself.
    """

    job_id: str
    reason: str | None
    job_succeeded: bool
    start_step: int
    last_step: int
    committed_step: int
    amount_micro_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAhead:
    """Queued jobs with steps of one shape; `steps` are left in all of them, None when one does not say how many."""

    shape_key: str
    jobs: int
    steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A running job, as far as its pace goes."""

    shape_key: str
    total_steps: int | None
    first_step_at_ms: int | None
    start_step: int
    last_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlaces:
    """A node: how many jobs it takes at one time, those that it has, its device, and what an hour of it costs."""

    places: int
    at_work: tuple[RunningJob, ...]
    device: str = ""
    price_micro_usd_per_hour: int = 0


class Forecasts(Protocol):
    """Queries for the forecast of a new job's end."""

    def recent(self, *, project_id: str) -> Mapping[str, Sequence[FinishedRecord]]:
        """Return the latest succeeded attempts on the operator's machines and the project's own, by their steps'
        shape.

        The price is the node's whole.
        """

    def ahead(self, *, kind: str, interrupted: bool, priority: int, turn: int, job_id: str) -> Sequence[QueueAhead]:
        """Return the queued jobs that go before one that is queued like this, by the shape of their steps."""

    def places(self, *, kind: str, project_id: str, min_vram_bytes: int, seen_since_ms: int) -> Sequence[NodePlaces]:
        """Return the nodes that may take such a job, heard of lately and not leaving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTime:
    """Billed time of a fleet by its use, in milliseconds, and its price; they are sums over hours."""

    fleet: str
    startup_ms: int
    useful_ms: int
    lost_ms: int
    at_risk_ms: int
    idle_ms: int
    billed_micro_usd: int

    @property
    def billed_ms(self) -> int:
        """The sum of all parts, in milliseconds."""
        return self.startup_ms + self.useful_ms + self.lost_ms + self.at_risk_ms + self.idle_ms


class CostQueries(Protocol):
    """Queries for the events and costs of a stretch of time."""

    def hosts(self, *, from_ms: int, before_ms: int) -> Sequence[BilledHost]:
        """Return the hosts that were billed at any moment of the time."""

    def stays(self, *, from_ms: int, before_ms: int) -> Sequence[StayRecord]:
        """Return the attempts that lived at any moment of the time, on any of these hosts."""

    def work(self, project_id: str | None, *, from_ms: int, before_ms: int) -> Sequence[WorkRecord]:
        """Return the attempts for a project, or for all, that began in the time: a record for each job of each."""

    def keep_fleet_time(self, hours: Mapping[int, Sequence[FleetTime]], *, kept_since_ms: int) -> None:
        """Write the time of these hours, by the instant at which each begins; delete older ones."""

    def last_fleet_hour_ms(self) -> int | None:
        """Return when the latest hour with billed time began; None without any."""

    def fleet_time(self, *, since_ms: int) -> Sequence[FleetTime]:
        """Return the sums over the hours that began at `since_ms` or later, by fleet."""

    def by_day(
        self, project_id: str | None, days: range, *, label: str | None, most: int
    ) -> Mapping[tuple[int, str | None], int]:
        """Return the costs of a project's attempts, or of all, by (day since 1970-01-01 in UTC, value of the label).

        At most `most` lines are read of attempts that had their node for themselves, the newest days first.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTime:
    """Milliseconds of a node's time that each of these pictures took. While a node has several leases or jobs, each
    has an equal share of its time."""

    node_ms: float
    pictures: int


class Spending(Protocol):
    """Queries for money spent, shares of nodes included, and money set aside."""

    def of_jobs(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the spending by job, over all of its attempts up to their latest sign of life."""

    def picture_times(self, order_id: str) -> Sequence[PictureTime]:
        """Return the node time of the order's drawn pictures, by lease; leases that drew none are left out."""

    def settled(self, project_id: str | None, *, from_ms: int, before_ms: int, month_ms: int) -> Spent:
        """Return the spending of the project's attempts that ended in this time, in all and from `month_ms` on;
        None: all projects'.
        """

    def unsettled(self, project_id: str | None, *, since_ms: int, month_ms: int) -> Spent:
        """Return the spending of the project's attempts that ended since, or live; in all and from `month_ms` on."""

    def reserved(self, project_id: str, *, but: str | None = None) -> int:
        """Return the money that the project's unfinished jobs set aside and have not spent, without the job `but`."""


class Pausing(Protocol):
    """Projects' budgets, and the jobs that wait for one to be raised."""

    def limited_projects(self) -> Sequence[tuple[str, ProjectLimits]]:
        """Return (id, budgets) of the projects that have any."""

    def projects_waiting(self) -> Sequence[str]:
        """Return the projects with jobs that wait for the project's money."""

    def pause_queued(self, project_id: str, *, payer: Payer, limit: int) -> Sequence[PausedJob]:
        """Move queued jobs of the project out of the queue, until this budget of the project has money. One whose
        silent attempt may come back stays, and so do those that another transaction has locked."""

    def resume_paused(self, project_id: str, *, limit: int) -> Sequence[PausedJob]:
        """Move jobs that wait for the project's money back into the queue, but those that another transaction has
        locked."""

    def warned(self, project_id: str, *, at_ms: int) -> bool:
        """Note that the project was warned; False when that was done since its budget was set."""

    def warned_of_month(self, project_id: str, *, month_ms: int, at_ms: int) -> bool:
        """Note that the project was warned of its budget per month; False when that was done since it was set or the
        month began.
        """

    def lock_limits(self, project_id: str) -> ProjectLimits:
        """Return the project's budgets; the rows stay locked until this transaction ends."""

    def set_budgets(self, project_id: str, budgets: Mapping[Payer, int | None]) -> bool:
        """Set or lift the budgets that are given; False when there is no such project."""
