"""`giornata costs`: what was paid, and what for."""

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from giornata.cli.jobs.budget import budget_lines
from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import count, duration
from giornata.client.client import Client
from giornata.domain.billing.money import format_rate_usd, format_usd
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.project.admin import Costs, FleetCosts
from giornata.protocol.project.daily_costs import DailyCosts

PARTS = ("useful", "lost", "at_risk", "idle", "startup")


def register(app: typer.Typer) -> None:
    """Add the command `costs` to `app`."""
    app.command("costs")(costs)


def costs(
    context: typer.Context,
    days: Annotated[float, typer.Option(metavar="N", min=0.001, max=366, help="Number of days before now.")] = 30,
    by_day: Annotated[
        bool, typer.Option("--by-day", help="Show the cost of each day in UTC, including today.")
    ] = False,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --by-day: show a line for each value of this label of jobs, such as customer."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="With --by-day: print the days as CSV.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the costs of jobs and of fleets.

    The command also shows the budgets of projects and how much of each is spent. Only an admin of the installation
    sees fleets.
    """
    with reporting(as_json) as out:
        _check(by_day=by_day, label=label, as_csv=as_csv, as_json=as_json)
        with connect(settings_of(context)) as client:
            if by_day:
                since = datetime.now(UTC).date() - timedelta(days=max(1, round(days)) - 1)
                _days(client.daily_costs(since=since, label=label), out, as_csv=as_csv)
            else:
                _whole(client, out, days=days)


def _check(*, by_day: bool, label: str | None, as_csv: bool, as_json: bool) -> None:
    faults = []
    for name, given in (("--label", label is not None), ("--csv", as_csv)):
        if given and not by_day:
            faults.append(Fault(where=name, message="goes with --by-day only", hint="add --by-day"))
    if as_csv and as_json:
        faults.append(Fault(where="--csv", message="does not go with --json", hint="leave one of them out"))
    if faults:
        raise InvalidInput(faults)


def _days(found: DailyCosts, out: Output, *, as_csv: bool) -> None:
    if as_csv:
        sys.stdout.write(found.as_csv())
        return
    if found.label is None:
        days = [(str(each.day), format_usd(each.cost_micro_usd)) for each in found.items]
        out.table(("day", "cost"), days, right=(1,))
    else:
        rows = [(str(each.day), each.value or "–", format_usd(each.cost_micro_usd)) for each in found.items]
        out.table(("day", found.label, "cost"), rows, right=(2,))
    out.say(f"{found.since} to {found.until}: {format_usd(found.total_micro_usd)}")
    out.result(found)


def _whole(client: Client, out: Output, *, days: float) -> None:
    since = None if days == 30 else datetime.now(UTC) - timedelta(days=days)
    found = client.costs(since=since)
    _work(found, out, days=days)
    if found.fleets:
        _fleets(found.fleets, out)
    budgets = [line for each in client.projects() if each.spent_micro_usd is not None for line in budget_lines(each)]
    if budgets:
        out.say("")
        out.say("budgets of projects")
    for line in budgets:
        out.say(f"  {line}")
    out.result(found)


def _work(found: Costs, out: Output, *, days: float) -> None:
    work = found.work
    out.say(
        f"last {days:g} days: {count(work.jobs, 'job')}, {work.jobs_succeeded} succeeded, "
        f"{format_usd(work.cost_micro_usd)}"
    )
    each = {
        "job": work.cost_per_job_usd,
        "step": work.cost_per_step_usd,
        "useful step": work.cost_per_useful_step_usd,
    }
    for name, usd in each.items():
        if usd is not None:
            out.say(f"  per {name:<12} {format_rate_usd(usd)}")


def _fleets(fleets: tuple[FleetCosts, ...], out: Output) -> None:
    out.say("")
    rows = [
        (
            fleet.fleet,
            str(fleet.instances),
            duration(fleet.billed_s),
            format_usd(fleet.billed_micro_usd),
            *_parts(fleet),
        )
        for fleet in fleets
    ]
    headers = ("fleet", "instances", "billed", "cost", "useful", "lost", "at risk", "idle", "start-up")
    out.table(headers, rows, right=tuple(range(1, len(headers))), prose=tuple(range(4, len(headers))), spare=(1,))


def _parts(fleet: FleetCosts) -> list[str]:
    """Describe each part's money with its share of the time."""
    said = []
    for part in PARTS:
        share = getattr(fleet, f"{part}_s") / fleet.billed_s if fleet.billed_s else 0.0
        paid = getattr(fleet, f"{part}_micro_usd")
        said.append(f"{format_usd(paid)} {share:.1%}" if share else "–")
    return said
