"""Report what work cost on each day, and by a label of its jobs."""

from datetime import UTC, date, datetime, timedelta

from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.text_limits import label_faults
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.project.admin import Scope
from giornata.protocol.project.daily_costs import DailyCost, DailyCosts

USUAL_DAYS = 30
MOST_DAYS = 366
MOST_LINES = 10_000
EPOCH = date(1970, 1, 1).toordinal()


def read_daily_costs(
    ctx: Context, caller: Caller, since: date | None, until: date | None, label: str | None
) -> DailyCosts:
    """Return what the work of the caller's project cost on each day in UTC; for an admin of the installation of all
    projects. With a label one line for each of its values.

    `until` is today unless given, `since` 29 days before. Raises Forbidden, and InvalidInput for days that are none,
    more than a year, or more than MOST_LINES lines.
    """
    require_scope(caller, Scope.JOBS_READ)
    last = until or datetime.fromtimestamp(ctx.clock.now_ms() / 1000, tz=UTC).date()
    first = since or last - min(timedelta(days=USUAL_DAYS - 1), last - date.min)
    if faults := query_faults(first, last, label):
        raise InvalidInput(faults)
    project_id = None if caller.is_root_admin else caller.project_id
    days = range(first.toordinal() - EPOCH, last.toordinal() - EPOCH + 1)
    with ctx.store.read() as tx:
        costs = tx.costs.by_day(project_id, days, label=label, most=MOST_LINES + 1)
    if len(costs) > MOST_LINES:
        fault = f"{label} has more than {MOST_LINES:,} values on these days"
        raise InvalidInput([Fault(where="query.label", message=fault, hint="ask for fewer days")])
    lines = sorted(costs.items(), key=lambda each: (-each[0][0], each[0][1] is not None, each[0][1] or ""))
    items = tuple(
        DailyCost(day=date.fromordinal(day + EPOCH), value=value, cost_micro_usd=amount)
        for (day, value), amount in lines
        if amount
    )
    return DailyCosts(since=first, until=last, label=label, items=items)


def query_faults(first: date, last: date, label: str | None) -> list[Fault]:
    """Return the faults of what is asked for: days from `first` to `last`, by this label."""
    faults = []
    if first > last:
        faults.append(Fault(where="query.since", message="is after until", hint="swap them"))
    elif (last - first).days >= MOST_DAYS:
        hint = "ask for one year at a time"
        faults.append(Fault(where="query.since", message="is more than a year before until", hint=hint))
    if label is not None:
        faults += label_faults({label: ""})
    return faults
