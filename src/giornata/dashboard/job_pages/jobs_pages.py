"""The list of jobs: filters, search, pages, and what is done to several at once."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fastapi import Response

from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.jobs.reading.read_jobs import list_jobs
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.dashboard.home_pages import ACTIVE, ENDED
from giornata.dashboard.rendering import render
from giornata.dashboard.shared_parts import LIST_KEPT_MS
from giornata.dashboard.visit import Visit, action, page, part, see
from giornata.domain.errors import Conflict, GiornataError, InvalidInput, NotFound, OverBudget
from giornata.domain.jobs.job import JobState
from giornata.protocol.jobs import Job
from giornata.protocol.specs import KINDS

PER_PAGE = 25
MOST_AT_ONCE = 100
STATES: Mapping[str, tuple[JobState, ...]] = MappingProxyType(
    {"": (), "active": ACTIVE, "ended": ENDED} | {str(state): (state,) for state in JobState}
)
LONGEST_MATCH = 128
ID_PREFIX = "job_"


def show(visit: Visit) -> Response:
    """Show a page of jobs, newest first. A filter that is of no use is said beside its field."""
    found = _listed(visit)
    return render(
        visit,
        "jobs.html",
        status=400 if found["faults"] else 200,
        states=[(name, name or "any") for name in STATES],
        kinds=[("", "any"), *((kind, kind) for kind in KINDS)],
        is_filtered=any(found["given"].values()),
        **found,
    )


def show_rows(visit: Visit) -> Response:
    """Show the jobs of the page alone, which it loads again and again."""
    return render(visit, "job_list.html", **_listed(visit))


def _listed(visit: Visit) -> dict[str, Any]:
    given = {name: visit.query(name) or "" for name in ("state", "kind", "match", "label")}
    faults = _faults(given)
    jobs: tuple[Job, ...] = ()
    following = None
    if not faults:
        try:
            found = list_jobs(visit.ctx, visit.caller, **_wanted(visit, given))
            jobs, following = found.items, found.next
        except InvalidInput as error:
            faults = {_field_of(each.where): each.message for each in error.faults}
    filters = {name: value or None for name, value in given.items()}
    here = visit.url("/jobs", **filters)
    return {
        "jobs": jobs,
        "given": given,
        "faults": faults,
        "refresh_url": visit.url("/jobs/rows", **filters, cursor=visit.query("cursor")),
        "next_url": visit.url("/jobs", **filters, cursor=following) if following else "",
        "first_url": here if visit.query("cursor") else "",
    }


def cancel_several(visit: Visit) -> Response:
    """Cancel each of the chosen jobs."""
    return _each(visit, cancel, "several-canceled")


def retry_several(visit: Visit) -> Response:
    """Try the chosen jobs again."""
    return _each(visit, retry, "several-retried")


def delete_several(visit: Visit) -> Response:
    """Delete each of the chosen jobs that has ended."""
    return _each(visit, delete_job, "several-deleted")


def _each(visit: Visit, verb: Callable[..., Any], said: str) -> Response:
    """Call the verb for each chosen job. What one job refuses does not keep the others from it."""
    chosen = list(dict.fromkeys(visit.form.all("job")))[:MOST_AT_ONCE]
    if not chosen:
        return see(visit.url("/jobs", said="none-chosen"))
    refused: list[GiornataError] = []
    for job_id in chosen:
        try:
            verb(visit.ctx, visit.caller, job_id)
        except (Conflict, NotFound, OverBudget) as error:
            refused.append(error)
    visit.request.app.state.wakeup.notify()
    return see(visit.url("/jobs", said="some-refused" if refused else said))


def _faults(given: Mapping[str, str]) -> dict[str, str]:
    faults = {}
    if given["state"] not in STATES:
        faults["state"] = "This is no state. Choose one from the list."
    if given["label"] and not all(given["label"].partition(":")[::2]):
        faults["label"] = "A label has the form key:value."
    if len(given["match"]) > LONGEST_MATCH:
        faults["match"] = f"A name has at most {LONGEST_MATCH} characters."
    return faults


def _field_of(where: str) -> str:
    return {"search": "match"}.get(where, where.partition(".")[0].replace("labels", "label"))


def _wanted(visit: Visit, given: Mapping[str, str]) -> dict[str, Any]:
    key, _, value = given["label"].partition(":")
    return {
        "states": STATES[given["state"]],
        "labels": {key: value} if key else {},
        "kind": given["kind"] or None,
        "match" if given["match"].startswith(ID_PREFIX) else "search": given["match"] or None,
        "cursor": visit.query("cursor"),
        "limit": PER_PAGE,
    }


ROUTES = (
    page("/projects/{project_id}/jobs", show),
    part("/projects/{project_id}/jobs/rows", show_rows, kept_ms=LIST_KEPT_MS),
    action("/projects/{project_id}/jobs/cancel", cancel_several),
    action("/projects/{project_id}/jobs/retry", retry_several),
    action("/projects/{project_id}/jobs/delete", delete_several),
)
