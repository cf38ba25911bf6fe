"""The money of a project: its budgets, and what it cost by day and label."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

from fastapi import Response

from giornata.control.projects.projects import own_project
from giornata.control.projects.read_daily_costs import query_faults, read_daily_costs
from giornata.control.projects.set_budget import set_project_budget
from giornata.dashboard.forms import asked_of, changed, micro_usd_in, said_of, sentence_of, status_of_page
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import Visit, action, page
from giornata.domain.errors import InvalidInput, NotFound
from giornata.protocol.project.admin import Scope, SetBudget
from giornata.protocol.project.daily_costs import DailyCosts

USUAL_DAYS = 30
MOST_VALUES = 50
WRONG_DAY = "Type a day, such as 2026-11-23."


def show(visit: Visit, *, faults: Mapping[str, str] | None = None, refusal: str = "") -> Response:
    """Show what the project may spend, and what it has spent; the costs by day are a part of their own."""
    days, wrong = _asked(visit)
    given = {name: visit.query(name) for name in ("since", "until", "label")}
    return render(
        visit,
        "project_money.html",
        status=status_of_page({**(faults or {}), **wrong}, refusal),
        tab="money",
        project=own_project(visit.ctx, visit.caller),
        is_operator=visit.operates,
        faults={**(faults or {}), **wrong},
        refusal=refusal,
        typed=visit.form.typed(),
        label=given["label"] or "",
        days=days,
        here=visit.url("/settings/money/days", **given),
        sees_jobs=visit.may(Scope.JOBS_READ),
    )


def show_days(visit: Visit) -> Response:
    """Show what work cost by day, or by the values of a label, which the page of money loads by itself."""
    (since, until), faults = _asked(visit)
    label = visit.query("label")
    try:
        found = None if faults else read_daily_costs(visit.ctx, visit.caller, since, until, label)
    except InvalidInput as error:
        return render(visit, "money_days.html", found=None, refusal=sentence_of(error))
    if found is None:
        return render(visit, "money_days.html", found=None, refusal=" ".join(faults.values()))
    by_value = Counter({each.value: 0 for each in found.items})
    for each in found.items:
        by_value[each.value] += each.cost_micro_usd
    return render(
        visit,
        "money_days.html",
        found=found,
        refusal="",
        values=by_value.most_common(MOST_VALUES),
        number_of_values=len(by_value),
        csv=visit.url(
            "/settings/money/days.csv", since=found.since.isoformat(), until=found.until.isoformat(), label=label
        ),
    )


def send_days(visit: Visit) -> Response:
    """Send the costs by day as CSV."""
    (since, until), faults = _asked(visit)
    if faults:
        raise NotFound("there is no such page")
    found: DailyCosts = read_daily_costs(visit.ctx, visit.caller, since, until, visit.query("label"))
    name = f"costs-{visit.project_id}-{found.since}-{found.until}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(found.as_csv(), media_type="text/csv; charset=utf-8", headers=headers)


def set_budgets(visit: Visit) -> Response:
    """Set both budgets of the project; an empty field lifts one."""
    wanted: dict[str, int | None] = {}
    faults = {}
    for name in ("budget", "monthly_budget"):
        given = visit.form.get(name)
        try:
            wanted[f"{name}_micro_usd"] = micro_usd_in(given) if given else None
        except ValueError:
            faults[name] = "Type an amount in dollars, such as 250, or leave the field empty."
    asked, more = asked_of(SetBudget, wanted)
    if asked is None or faults:
        return show(visit, faults={name.removesuffix("_micro_usd"): said for name, said in more.items()} | faults)
    verb = partial(set_project_budget, visit.ctx, visit.governing(), visit.project_id, asked)
    return changed(visit, verb, show, "/settings/money", "saved")


def _asked(visit: Visit) -> tuple[tuple[date, date], dict[str, str]]:
    """Return the first and the last day that the address names, by default the last 30, and faults by field.

    The label has its faults here, too.
    """
    today = datetime.fromtimestamp(visit.ctx.clock.now_ms() / 1000, tz=UTC).date()
    found: dict[str, Any] = {"since": today - timedelta(days=USUAL_DAYS - 1), "until": today}
    faults = {}
    for name, usual in tuple(found.items()):
        given = visit.query(name)
        try:
            found[name] = date.fromisoformat(given) if given else usual
        except ValueError:
            faults[name] = WRONG_DAY
    for fault in query_faults(found["since"], found["until"], visit.query("label") or None):
        faults.setdefault("since" if fault.where == "query.since" else "label", f"{said_of(fault)}.")
    return (found["since"], found["until"]), faults


_HERE = "/projects/{project_id}/settings"
ROUTES = (
    page(f"{_HERE}/money", show),
    page(f"{_HERE}/money/days", show_days),
    page(f"{_HERE}/money/days.csv", send_days),
    action(f"{_HERE}/budgets", set_budgets),
)
