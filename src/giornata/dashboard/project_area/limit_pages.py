"""The limits of a project: quotas with their use, how long it keeps what, and what is pinned."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import Response

from giornata.control.end_of_life import pins, retention
from giornata.control.projects import set_quotas as quotas
from giornata.dashboard.forms import asked_of, changed, status_of_page, whole_number
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import Visit, action, page, see
from giornata.domain.errors import NotFound
from giornata.domain.files.retention import KeptClass
from giornata.protocol.project.end_of_life import RetentionPreview, SetRetention
from giornata.protocol.project.quotas import LimitUse, ProjectQuotas, SetQuotas

QUOTAS: Mapping[str, str] = {
    "max_running_jobs": "Jobs that run at a time",
    "max_queued_jobs": "Jobs and orders that wait",
    "max_open_orders": "Orders of pictures that have not ended",
    "max_pictures_per_day": "Pictures ordered on a day in UTC",
    "max_stored_bytes": "Stored bytes",
    "max_priority": "Highest priority of a job",
    "max_requests_per_s": "Requests a second of the project",
    "max_requests_per_s_per_key": "Requests a second of each key",
}
"""Fields of the form, which are fields of SetQuotas, with their labels."""
KEPT: Mapping[KeptClass, str] = {
    KeptClass.DATASETS: "Datasets",
    KeptClass.CHECKPOINTS: "Checkpoints",
    KeptClass.ARTIFACTS: "Results",
    KeptClass.PICTURES: "Pictures",
    KeptClass.LOGS: "Logs",
    KeptClass.METRICS: "Metrics",
    KeptClass.EVENTS: "Events",
}
MOST_PINS = 100


def show_quotas(visit: Visit, *, faults: Mapping[str, str] | None = None, refusal: str = "") -> Response:
    """Show the limits of the project beside what it uses of them."""
    found = quotas.read_quotas(visit.ctx, visit.caller, visit.project_id)
    return render(
        visit,
        "project_quotas.html",
        status=status_of_page(faults, refusal),
        tab="quotas",
        uses=_uses(found),
        quotas=found,
        fields=QUOTAS,
        limits=_limits(found),
        is_operator=visit.operates,
        faults=faults or {},
        refusal=refusal,
        typed=visit.form.typed(),
    )


def set_limits(visit: Visit) -> Response:
    """Set the limits of the project; an empty field lifts one."""
    faults: dict[str, str] = {}
    wanted = {name: whole_number(visit.form, name, faults) for name in QUOTAS}
    asked, more = asked_of(SetQuotas, wanted)
    if asked is None or faults:
        return show_quotas(visit, faults=more | faults)
    verb = partial(quotas.set_quotas, visit.ctx, visit.governing(), visit.project_id, asked)
    answer = changed(visit, verb, show_quotas, "/settings/quotas", "saved")
    visit.request.app.state.wakeup.notify()
    return answer


def show_retention(
    visit: Visit,
    *,
    faults: Mapping[str, str] | None = None,
    preview: RetentionPreview | None = None,
    refusal: str = "",
) -> Response:
    """Show how long the project keeps what, what is pinned, and what would go now."""
    kept = retention.read_retention_of(visit.ctx, visit.caller, visit.project_id)
    pinned = pins.list_pins(visit.ctx, visit.caller, limit=MOST_PINS)
    return render(
        visit,
        "project_retention.html",
        status=status_of_page(faults, refusal),
        tab="retention",
        kept=kept,
        classes=[(str(each), label) for each, label in KEPT.items()],
        labels={str(each): label for each, label in KEPT.items()},
        pins=pinned.items,
        preview=preview,
        faults=faults or {},
        refusal=refusal,
        typed=visit.form.typed(),
        was_typed=visit.request.method == "POST" and "pin" not in visit.form.typed(),
    )


def set_retention(visit: Visit) -> Response:
    """Set how long the project keeps what; an empty field keeps it until somebody deletes it."""
    asked, faults = _wanted_retention(visit)
    if asked is None:
        return show_retention(visit, faults=faults)
    retention.set_retention(visit.ctx, visit.caller, visit.project_id, asked)
    return see(visit.url("/settings/retention", said="saved"))


def preview_retention(visit: Visit) -> Response:
    """Show what would go now if the form was saved."""
    asked, faults = _wanted_retention(visit)
    if asked is None:
        return show_retention(visit, faults=faults)
    found = retention.preview_retention(visit.ctx, visit.caller, visit.project_id, asked)
    return show_retention(visit, preview=found)


def pin(visit: Visit) -> Response:
    """Pin what was typed: a job, a dataset, or JOB@STEP."""
    try:
        pins.set_pin(visit.ctx, visit.caller, visit.form.get("pin"), pinned=True)
    except NotFound as error:
        return show_retention(visit, faults={"pin": f"{error.public[:1].upper()}{error.public[1:]}."})
    return see(visit.url("/settings/retention", said="saved"))


def unpin(visit: Visit) -> Response:
    """Let retention take it again."""
    pins.set_pin(visit.ctx, visit.caller, visit.form.get("target"), pinned=False)
    return see(visit.url("/settings/retention", said="removed"))


def _wanted_retention(visit: Visit) -> tuple[Any, Mapping[str, str]]:
    faults: dict[str, str] = {}
    wanted = {str(each): whole_number(visit.form, str(each), faults) for each in KEPT}
    asked, more = asked_of(SetRetention, wanted)
    return (None, {**more, **faults}) if faults else (asked, more)


def _uses(found: ProjectQuotas) -> list[tuple[str, LimitUse]]:
    return [
        ("Jobs that run", found.running_jobs),
        ("Jobs and orders that wait", found.queued_jobs),
        ("Orders that have not ended", found.open_orders),
        ("Pictures ordered today", found.pictures_per_day),
        ("Stored", found.stored_bytes),
        ("Spent this month", found.monthly_spend_micro_usd),
    ]


def _limits(found: ProjectQuotas) -> dict[str, int | None]:
    """Return the limits that are set, by the field of the form."""
    return {
        "max_running_jobs": found.running_jobs.limit,
        "max_queued_jobs": found.queued_jobs.limit,
        "max_open_orders": found.open_orders.limit,
        "max_pictures_per_day": found.pictures_per_day.limit,
        "max_stored_bytes": found.stored_bytes.limit,
        "max_priority": found.max_priority,
        "max_requests_per_s": found.max_requests_per_s,
        "max_requests_per_s_per_key": found.max_requests_per_s_per_key,
    }


_HERE = "/projects/{project_id}/settings"
ROUTES = (
    page(f"{_HERE}/quotas", show_quotas),
    page(f"{_HERE}/retention", show_retention),
    action(f"{_HERE}/quotas", set_limits),
    action(f"{_HERE}/retention", set_retention),
    action(f"{_HERE}/retention/preview", preview_retention),
    action(f"{_HERE}/pins", pin),
    action(f"{_HERE}/pins/remove", unpin),
)
