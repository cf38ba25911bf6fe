"""Quotas: how much of the service a project may have at a time, a day or a second, and which models it may name.

None stands for no limit. Money has budgets of its own (`giornata.domain.billing.budget`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from giornata.domain.errors import Fault, InvalidInput, OverQuota, QuotaFault


class QuotaName(StrEnum):
    """The name of a limit, as refusals and replies give it."""

    RUNNING_JOBS = "running_jobs"
    QUEUED_JOBS = "queued_jobs"
    OPEN_ORDERS = "open_orders"
    PICTURES_PER_DAY = "pictures_per_day"
    STORED_BYTES = "stored_bytes"
    PRIORITY = "priority"
    BUDGET = "budget_micro_usd"
    MONTHLY_BUDGET = "monthly_budget_micro_usd"
    BASE_MODELS = "base_models"
    ADAPTERS = "adapters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The limits of a project.

    `max_requests_per_s` bounds all keys and sessions of the project together, `max_requests_per_s_per_key` each of
    them. The allowed models are patterns; see `is_allowed`.
    """

    max_running_jobs: int | None = None
    max_queued_jobs: int | None = None
    max_pictures_per_day: int | None = None
    max_stored_bytes: int | None = None
    max_priority: int | None = None
    max_requests_per_s: int | None = None
    max_requests_per_s_per_key: int | None = None
    allowed_base_models: Sequence[str] | None = None
    allowed_adapters: Sequence[str] | None = None
    max_open_orders: int | None = None

    @property
    def counts_jobs(self) -> bool:
        """True when a submission has to count or add up what the project has already."""
        # Written out: it is asked at each submission.
        most = self.max_open_orders
        return not (self.max_queued_jobs is self.max_pictures_per_day is self.max_stored_bytes is most is None)

    @property
    def bound_jobs(self) -> bool:
        """True when any of these limits is about what may be submitted."""
        named = self.allowed_base_models is not None or self.allowed_adapters is not None
        return named or self.max_priority is not None or self.counts_jobs


NO_QUOTAS = Quotas()
QUOTA_NAMES = tuple(each.name for each in fields(Quotas))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """The use of all that a submission may need: as of `at_ms`, in epoch milliseconds."""

    at_ms: int
    queued_jobs: int = 0
    pictures_today: int = 0
    stored_bytes: int = 0
    open_orders: int = 0


NO_USE = QuotaUse(at_ms=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaStanding:
    """The limits of a project and what it uses of them."""

    quotas: Quotas = NO_QUOTAS
    use: QuotaUse = NO_USE


UNLIMITED = QuotaStanding()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRequest:
    """The demand of one submission, in jobs, pictures and bytes. An order is a job, too."""

    jobs: int = 0
    pictures: int = 0
    stored_bytes: int = 0
    orders: int = 0


def with_request(standing: QuotaStanding, asked: QuotaRequest) -> QuotaStanding:
    """Return the standing after this request was granted."""
    use = standing.use
    more = QuotaUse(
        at_ms=use.at_ms,
        queued_jobs=use.queued_jobs + asked.jobs,
        pictures_today=use.pictures_today + asked.pictures,
        stored_bytes=use.stored_bytes + asked.stored_bytes,
        open_orders=use.open_orders + asked.orders,
    )
    return QuotaStanding(quotas=standing.quotas, use=more)


def over_quota(standing: QuotaStanding, asked: QuotaRequest, *, where: str = "project") -> Iterator[QuotaFault]:
    """Yield a fault for each limit that has no room for the request.

    A store that is full takes no new job either: a job stores what it makes.
    """
    quotas, use = standing.quotas, standing.use
    most, used = quotas.max_queued_jobs, use.queued_jobs
    if most is not None and asked.jobs and used + asked.jobs > most:
        hint = "wait until a job begins, cancel one, or have the operator raise the limit"
        message, quota = f"{used} of {most} queued jobs are taken", QuotaName.QUEUED_JOBS
        yield QuotaFault(where=where, message=message, hint=hint, quota=quota, limit=most, used=used)
    most, used = quotas.max_open_orders, use.open_orders
    if most is not None and asked.orders and used + asked.orders > most:
        message, quota = f"{used} of {most} orders of pictures have not ended", QuotaName.OPEN_ORDERS
        hint = "wait until an order ends, cancel one, or have the operator raise the limit"
        yield QuotaFault(where=where, message=message, hint=hint, quota=quota, limit=most, used=used)
    most, used = quotas.max_pictures_per_day, use.pictures_today
    if most is not None and asked.pictures and used + asked.pictures > most:
        free_at_ms = day_start_ms(use.at_ms, days=1) if asked.pictures <= most else None
        message = f"asks for {asked.pictures} pictures, and {used} of {most} of this day are ordered already"
        hint = "ask for fewer" + ("" if free_at_ms is None else f", or order after {_instant(free_at_ms)}")
        quota = QuotaName.PICTURES_PER_DAY
        fault = QuotaFault(where=where, message=message, hint=hint, quota=quota, limit=most, used=used)
        yield replace(fault, free_at_ms=free_at_ms)
    most, used = quotas.max_stored_bytes, use.stored_bytes
    if most is not None and (asked.jobs or asked.stored_bytes) and used + max(1, asked.stored_bytes) > most:
        wanted = f" and {asked.stored_bytes} more do not fit" if asked.stored_bytes else ""
        message = f"{used} of {most} stored bytes are taken{wanted}"
        hint = "delete what is not needed any more, or have the operator raise the limit"
        quota = QuotaName.STORED_BYTES
        yield QuotaFault(where=where, message=message, hint=hint, quota=quota, limit=most, used=used)


def priority_fault(quotas: Quotas, priority: int) -> Iterator[QuotaFault]:
    """Yield the fault of a priority above the project's ceiling."""
    most = quotas.max_priority
    if most is not None and priority > most:
        message = f"is {priority}; the highest of this project is {most}"
        hint, quota = f"give {most} or less", QuotaName.PRIORITY
        yield QuotaFault(where="priority", message=message, hint=hint, quota=quota, limit=most, used=priority)


def refusal_of(faults: Sequence[Fault]) -> InvalidInput:
    """Return the error for these faults: OverQuota when all of them are of quotas."""
    only_quotas = bool(faults) and all(isinstance(fault, QuotaFault) for fault in faults)
    return OverQuota(faults) if only_quotas else InvalidInput(faults)


# ---- models


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """The facts of a model that are certain. `names` are none that a tenant could have made up."""

    names: Sequence[str]
    sha256: str | None = None
    family: str | None = None
    source: str | None = None


PREFIXES: Mapping[str, str] = {"sha256": "sha256", "family": "family", "source": "source"}
"""A pattern that begins with one of these and a colon is about that field of the model."""


def is_allowed(patterns: Sequence[str] | None, model: ModelIdentity) -> bool:
    """Return True when one of the patterns fits the model, or when there is no list at all.

    `sha256:HEX`, `family:NAME` and `source:NAME` compare that field; any other pattern is a name, in which `*` stands
    for any text.
    """
    return patterns is None or any(_fits(pattern, model) for pattern in patterns)


def _fits(pattern: str, model: ModelIdentity) -> bool:
    prefix, _, value = pattern.partition(":")
    if prefix in PREFIXES and value:
        return bool(getattr(model, PREFIXES[prefix]) == value)
    return any(fnmatchcase(name, _only_stars(pattern)) for name in model.names)


def _only_stars(pattern: str) -> str:
    """Return the pattern with `?` and `[` as themselves: URLs have them."""
    return "".join(f"[{each}]" if each in "?[" else each for each in pattern)


# ---- days


def day_start_ms(at_ms: int, *, days: int = 0) -> int:
    """Return the start of this instant's day in UTC, or of the one `days` later, in epoch milliseconds."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    start = datetime(at.year, at.month, at.day, tzinfo=UTC) + timedelta(days=days)
    return round(start.timestamp()) * 1000


def _instant(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M} UTC"
