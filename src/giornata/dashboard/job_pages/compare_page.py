"""Compare: training jobs side by side, or those of a sweep: curves, samples, cost, and what differs in the spec."""

import json
from typing import Any

from fastapi import Response

from giornata.control.jobs.reading.read_jobs import list_jobs
from giornata.control.jobs.reading.read_sweep import compare_jobs, get_sweep
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import Visit, page
from giornata.domain.jobs.sweep import MOST_SWEPT, SWEEP_KIND
from giornata.protocol.sweeps import SweptJobReply

CURVES = 12
"""Jobs whose curves one chart has; more cannot be told apart."""
LISTED = 20


def show(visit: Visit) -> Response:
    """Show the jobs that the address names, or the sweeps and jobs that could be compared."""
    if chosen := visit.request.query_params.getlist("job")[: MOST_SWEPT + 1]:
        found = compare_jobs(visit.ctx, visit.caller, chosen)
        return _page(visit, "Compare", found.jobs, found.differs)
    of_sweeps = visit.query("kind") == SWEEP_KIND
    listed = list_jobs(
        visit.ctx,
        visit.caller,
        states=(),
        labels={},
        kind=SWEEP_KIND if of_sweeps else "train",
        cursor=visit.query("cursor"),
        limit=LISTED,
    )
    kind = SWEEP_KIND if of_sweeps else None
    return render(
        visit,
        "compare_choice.html",
        of_sweeps=of_sweeps,
        jobs=listed.items,
        next_url=visit.url("/compare", kind=kind, cursor=listed.next) if listed.next else "",
        first_url=visit.url("/compare", kind=kind) if visit.query("cursor") else "",
    )


def show_sweep(visit: Visit) -> Response:
    """Show the jobs of a sweep."""
    found = get_sweep(visit.ctx, visit.caller, visit.path("job_id"))
    return _page(visit, found.job.name, found.jobs, found.differs, sweep=found.job)


def _page(
    visit: Visit, title: str, jobs: tuple[SweptJobReply, ...], differs: tuple[str, ...], *, sweep: Any = None
) -> Response:
    curves = [
        {"name": f"{each.number}: {_described(each, differs)}", "url": f"/v1/jobs/{each.job_id}/metrics"}
        for each in jobs[:CURVES]
    ]
    return render(
        visit,
        "compare.html",
        title=title,
        sweep=sweep,
        jobs=jobs,
        differs=differs,
        values={each.job_id: [_value(each.changes.get(field)) for field in differs] for each in jobs},
        curves=json.dumps(curves),
        left_out=max(0, len(jobs) - CURVES),
    )


def _described(job: SweptJobReply, differs: tuple[str, ...]) -> str:
    return ", ".join(f"{field} {_value(job.changes.get(field))}" for field in differs)[:60] or job.name


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


ROUTES = (
    page("/projects/{project_id}/compare", show),
    page("/projects/{project_id}/compare/{job_id}", show_sweep),
)
