"""Report what was paid in a stretch of time, and what for."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.money_store import BilledHost, StayRecord, WorkRecord
from giornata.control.timestamps import instant
from giornata.domain.billing.accounting import account, preparation_ms
from giornata.domain.billing.costs import PARTS, Bill, BilledAttempt, Interval, Split, add, split
from giornata.domain.billing.money import MICRO_USD, cost_per_step_micro_usd
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.project.admin import Costs, FleetCosts, Scope, WorkCosts

USUAL = timedelta(days=30)
LONGEST = timedelta(days=366)


def read_costs(ctx: Context, caller: Caller, since: datetime | None, until: datetime | None) -> Costs:
    """Return the work of the caller's project; for an admin of the installation of all projects, and the fleets'
    bills.

    `until` is now unless given, `since` thirty days before. Raises Forbidden, and InvalidInput for a time that is
    none, or longer than a year.
    """
    require_scope(caller, Scope.JOBS_READ)
    now = datetime.fromtimestamp(ctx.clock.now_ms() / 1000, tz=UTC)
    end = now if until is None else _aware(until)
    begin = end - USUAL if since is None else _aware(since)
    _check(begin, end)
    during = Interval(from_ms=_ms(begin), to_ms=_ms(end))
    with ctx.store.read() as tx:
        project_id = None if caller.is_root_admin else caller.project_id
        work = tx.costs.work(project_id, from_ms=during.from_ms, before_ms=during.to_ms)
        fleets = _fleets(tx, during) if caller.is_root_admin else ()
    return Costs(since=instant(during.from_ms), until=instant(during.to_ms), work=_work(work), fleets=fleets)


def _check(begin: datetime, end: datetime) -> None:
    if begin >= end:
        raise InvalidInput([Fault(where="query.since", message="is not before until", hint="swap them")])
    if end - begin > LONGEST:
        hint = "ask for one year at a time"
        raise InvalidInput([Fault(where="query.since", message="is more than a year before until", hint=hint)])


def _aware(given: datetime) -> datetime:
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _work(records: Sequence[WorkRecord]) -> WorkCosts:
    spent = sum(record.amount_micro_usd for record in records)
    steps = sum(max(0, record.last_step - record.start_step) for record in records)
    useful = sum(max(0, _reached(record) - record.start_step) for record in records)
    done = {record.job_id for record in records if record.job_succeeded}
    return WorkCosts(
        jobs=len({record.job_id for record in records}),
        jobs_succeeded=len(done),
        steps=steps,
        useful_steps=useful,
        cost_micro_usd=spent,
        cost_per_job_usd=_each(spent, len(done)),
        cost_per_step_usd=_each(spent, steps),
        cost_per_useful_step_usd=_each(spent, useful),
    )


def _reached(record: WorkRecord) -> int:
    return record.last_step if record.reason == Reason.SUCCEEDED else record.committed_step


def _each(spent: int, count: int) -> float | None:
    per = cost_per_step_micro_usd(total_micro_usd=spent, steps=count)
    return None if per is None else per / MICRO_USD


def _fleets(tx: Transaction, during: Interval) -> tuple[FleetCosts, ...]:
    return tuple(_fleet(name, splits) for name, splits in sorted(splits_by_fleet(tx, during).items()))


def splits_by_fleet(tx: Transaction, during: Interval) -> Mapping[str, Sequence[Split]]:
    """Return the billed time of each instance in the stretch of time, by fleet."""
    stays: dict[str, list[StayRecord]] = defaultdict(list)
    for stay in tx.costs.stays(from_ms=during.from_ms, before_ms=during.to_ms):
        stays[stay.host_key].append(stay)
    by_fleet: dict[str, list[Split]] = defaultdict(list)
    for host in tx.costs.hosts(from_ms=during.from_ms, before_ms=during.to_ms):
        by_fleet[host.fleet].append(split(_bill(host, during), [_stay(stay) for stay in stays[host.key]]))
    return by_fleet


def _bill(host: BilledHost, during: Interval) -> Bill:
    asked_about = tuple(
        replace(billed, interval=Interval(from_ms=from_ms, to_ms=to_ms))
        for billed in host.billed
        if (from_ms := max(billed.interval.from_ms, during.from_ms))
        < (to_ms := min(billed.interval.to_ms, during.to_ms))
    )
    return Bill(billed=asked_about, ready_at_ms=host.ready_at_ms)


def _stay(record: StayRecord) -> BilledAttempt:
    run = record.run
    return BilledAttempt(intervals=record.intervals, seconds=account(run), preparation_ms=preparation_ms(run))


def _fleet(name: str, splits: Sequence[Split]) -> FleetCosts:
    whole = add(splits)
    parts = {f"{part}_s": getattr(whole, f"{part}_ms") / 1000 for part in PARTS}
    parts |= {f"{part}_micro_usd": getattr(whole, f"{part}_micro_usd") for part in PARTS}
    return FleetCosts(
        fleet=name,
        instances=len(splits),
        billed_s=whole.billed_ms / 1000,
        billed_micro_usd=whole.billed_micro_usd,
        **parts,
    )
