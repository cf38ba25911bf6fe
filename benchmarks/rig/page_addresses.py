"""The addresses that are measured of each route of the dashboard. A route without any is a fault of this file."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from starlette.routing import BaseRoute, Route

from benchmarks.rig.page_data import QUEUED
from benchmarks.rig.page_examples import GRID, JOB, ORDER, PRETRAINING, SWEEP, WEBHOOK

PROJECT = "default"
FLEET_NAME = "desk"
"""A fleet that the measured servers have by their settings."""
# An order has a number that seven divides; the others were trainings, of which those up to 2 * QUEUED run.
RUNNING = tuple(f"job_many{number}" for number in range(QUEUED + 1, 2 * QUEUED + 1) if number % 7)
WAITING = f"job_many{QUEUED}"
_HERE = "/projects/{project_id}"
_JOB, _FLEET, _SETTINGS = f"{_HERE}/jobs/{{job_id}}", f"{_HERE}/fleet", f"{_HERE}/settings"
_GALLERY = {
    "gallery": "",
    "gallery, prompt": "?match=harbor+sea",
    "gallery, model": "?of_model=some/model",
    "gallery, LoRA": "?of_lora=style",
    "gallery, date": "?since=2020-01-01&until=2100-01-01",
    "gallery, star": "?starred=yes",
    "gallery, tag": "?tag=best",
    "gallery, all of these": "?match=house&of_model=some/model&of_lora=style&since=2020-01-01&starred=yes&tag=best",
}
_OF_ROUTES: Mapping[str, Mapping[str, str]] = {
    _HERE: {"home": _HERE},
    f"{_HERE}/active": {"home, what runs": f"{_HERE}/active"},
    f"{_HERE}/ended": {"home, what ended": f"{_HERE}/ended"},
    f"{_HERE}/installation": {"home, installation": f"{_HERE}/installation"},
    f"{_HERE}/installation/queue": {"home, queue": f"{_HERE}/installation/queue"},
    f"{_HERE}/installation/day": {"home, last day": f"{_HERE}/installation/day"},
    f"{_HERE}/jobs": {
        "jobs": f"{_HERE}/jobs",
        "jobs, search": f"{_HERE}/jobs?match=many+9",
        "jobs, no such name": f"{_HERE}/jobs?match=no+such+name",
        "jobs, failed": f"{_HERE}/jobs?state=failed",
    },
    f"{_HERE}/jobs/rows": {"jobs, list alone": f"{_HERE}/jobs/rows"},
    _JOB: {
        "job": f"{_HERE}/jobs/{JOB}",
        "running job": f"{_HERE}/jobs/{RUNNING[0]}",
        "waiting job": f"{_HERE}/jobs/{WAITING}",
        "job, order": f"{_HERE}/jobs/{ORDER}",
        "job, pre-training": f"{_HERE}/jobs/{PRETRAINING}",
    },
    f"{_JOB}/head": {"job, head": f"{_HERE}/jobs/{RUNNING[0]}/head"},
    f"{_JOB}/pictures": {"job, pictures": f"{_HERE}/jobs/{JOB}/pictures"},
    f"{_JOB}/timeline": {"job, timeline": f"{_HERE}/jobs/{JOB}/timeline"},
    f"{_JOB}/newest": {"job, newest sheet": f"{_HERE}/jobs/{JOB}/newest"},
    f"{_JOB}/files": {"job, files": f"{_HERE}/jobs/{JOB}/files?kind=train"},
    f"{_JOB}/files/all": {"job, all files": f"{_HERE}/jobs/{JOB}/files/all"},
    f"{_JOB}/audits": {"job, audits": f"{_HERE}/jobs/{JOB}/audits"},
    f"{_JOB}/pretraining": {"pre-training": f"{_HERE}/jobs/{PRETRAINING}/pretraining"},
    f"{_HERE}/compare": {
        "compare": f"{_HERE}/compare",
        "compare, sweeps": f"{_HERE}/compare?kind=sweep",
        "compare, two jobs": f"{_HERE}/compare?job={JOB}&job={RUNNING[0]}",
    },
    f"{_HERE}/compare/{{job_id}}": {"sweep": f"{_HERE}/compare/{SWEEP}"},
    _FLEET: {"fleet": _FLEET, "fleet, also those that left": f"{_FLEET}?gone=yes"},
    f"{_FLEET}/machines": {"machines": f"{_FLEET}/machines"},
    f"{_FLEET}/nodes": {"fleet, nodes alone": f"{_FLEET}/nodes"},
    f"{_FLEET}/loops": {"loops": f"{_FLEET}/loops"},
    f"{_FLEET}/named/{{name}}": {"one fleet": f"{_FLEET}/named/{FLEET_NAME}"},
    f"{_HERE}/generate": {"generate": f"{_HERE}/generate", "generate, like": f"{_HERE}/generate?like={GRID}"},
    f"{_HERE}/orders/{{job_id}}": {"order": f"{_HERE}/orders/{ORDER}"},
    f"{_HERE}/grids/{{job_id}}": {"grid": f"{_HERE}/grids/{GRID}"},
    f"{_HERE}/gallery": {name: f"{_HERE}/gallery{query}" for name, query in _GALLERY.items()},
    _SETTINGS: {"project": _SETTINGS},
    f"{_SETTINGS}/keys": {"keys": f"{_SETTINGS}/keys"},
    f"{_SETTINGS}/webhooks": {"webhooks": f"{_SETTINGS}/webhooks"},
    f"{_SETTINGS}/webhooks/{{webhook_id}}": {"deliveries": f"{_SETTINGS}/webhooks/{WEBHOOK}"},
    f"{_SETTINGS}/quotas": {"quotas": f"{_SETTINGS}/quotas"},
    f"{_SETTINGS}/retention": {"retention": f"{_SETTINGS}/retention"},
    f"{_SETTINGS}/audit-log": {"audit log": f"{_SETTINGS}/audit-log"},
    f"{_SETTINGS}/money": {"money": f"{_SETTINGS}/money"},
    f"{_SETTINGS}/money/days": {"money by day": f"{_SETTINGS}/money/days"},
    f"{_HERE}/train": {"new training": f"{_HERE}/train", "new training, like": f"{_HERE}/train?like={JOB}"},
    "/sign-in": {"sign-in": "/sign-in"},
    "/invitation": {"invitation": "/invitation"},
    "/account": {"account": "/account"},
    "/api": {"reference of the API": "/api"},
}
NOT_MEASURED = {
    **dict.fromkeys(("/", "/open", "/enter"), "leads to another page"),
    **dict.fromkeys(("/ui", "/ui/metrics"), "shows the components, to developers"),
    **dict.fromkeys(
        (
            f"{_JOB}/pictures/{{name}}",
            f"{_JOB}/provenance",
            f"{_HERE}/orders/{{job_id}}/pictures/{{number}}",
            f"{_HERE}/grids/{{job_id}}/cells.csv",
            f"{_HERE}/grids/{{job_id}}/cells.json",
            f"{_HERE}/uploaded/{{sha256}}",
            f"{_SETTINGS}/audit-log/export",
            f"{_SETTINGS}/money/days.csv",
        ),
        "sends a file",
    ),
}
"""Routes of GET that are no pages, and why."""


def addresses(routes: Iterable[BaseRoute]) -> Mapping[str, str]:
    """Return the addresses of all pages and parts of pages among these routes, by a name.

    Raises LookupError for routes of which this file says nothing, and for those that it names and that are not there.
    """
    there = {each.path for each in routes if isinstance(each, Route) and "GET" in (each.methods or ())}
    known = _OF_ROUTES.keys() | NOT_MEASURED.keys()
    if there != known:
        raise LookupError(
            f"page_addresses.py has no address of {sorted(there - known)}, and names {sorted(known - there)}, which "
            "are no routes of pages; add what is missing to _OF_ROUTES, or to NOT_MEASURED with the reason"
        )
    found = {name: path for of_route in _OF_ROUTES.values() for name, path in of_route.items()}
    return MappingProxyType({name: f"/dashboard{path.format(project_id=PROJECT)}" for name, path in found.items()})
