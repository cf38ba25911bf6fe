"""The audit log of the project: filtered, a page at a time, and as a file."""

import json
from collections.abc import Iterator
from datetime import datetime

from fastapi import Response
from fastapi.responses import StreamingResponse

from giornata.control.access import read_audit_log
from giornata.control.ports.user_queries.audit_log_store import AuditFilter
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import Visit, page
from giornata.domain.accounts.audit_log import AuditVerb

PER_PAGE = 50
PER_READ = 500
LONGEST = {"actor": 200, "target": 512}
MEDIA_TYPE = "application/jsonl"


def show(visit: Visit) -> Response:
    """Show who changed what. A filter that is of no use is said beside its field."""
    given = {name: visit.query(name) or "" for name in ("actor", "verb", "target", "since")}
    faults = {name: f"It has at most {most} characters." for name, most in LONGEST.items() if len(given[name]) > most}
    if given["verb"] and given["verb"] not in set(AuditVerb):
        faults["verb"] = "This is no verb. Choose one from the list."
    since = None
    if given["since"]:
        try:
            since = datetime.fromisoformat(given["since"])
        except ValueError:
            faults["since"] = "Type a day, such as 2026-11-23."
    filters = {name: value or None for name, value in given.items()}
    wanted = AuditFilter(
        project_id=visit.project_id,
        actor=filters["actor"],
        verb=AuditVerb(given["verb"]) if given["verb"] in set(AuditVerb) else None,
        target=filters["target"],
        since_ms=read_audit_log.instant_ms(since),
    )
    cursor = None if faults else visit.query("cursor")
    if faults:
        wanted = AuditFilter(project_id=visit.project_id)
    found = read_audit_log.list_audit_log(visit.ctx, visit.caller, wanted, cursor, PER_PAGE)
    here = "/settings/audit-log"
    return render(
        visit,
        "audit_log.html",
        status=400 if faults else 200,
        tab="audit-log",
        rows=() if faults else found.items,
        given=given,
        faults=faults,
        verbs=[("", "any"), *((str(each), str(each)) for each in AuditVerb)],
        is_filtered=any(given.values()),
        next_url=visit.url(here, **filters, cursor=found.next) if found.next and not faults else "",
        first_url=visit.url(here, **filters) if cursor else "",
    )


def send(visit: Visit) -> Response:
    """Send the project's chain as JSON Lines, oldest row first; the last line names the newest row."""
    lines = _lines(visit)
    first = next(lines)  # a refusal is a page, and no file that breaks off
    name = f"audit-log-{visit.project_id}.jsonl"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_behind(first, lines), media_type=MEDIA_TYPE, headers=headers)


def _behind(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _lines(visit: Visit) -> Iterator[str]:
    after = 0
    while True:
        *rows, head = read_audit_log.export_lines(
            visit.ctx, visit.caller, visit.project_id, after=after, limit=PER_READ
        )
        yield from (f"{row}\n" for row in rows)
        if len(rows) < PER_READ:
            yield f"{head}\n"
            return
        after = json.loads(rows[-1])["number"]


ROUTES = (
    page("/projects/{project_id}/settings/audit-log", show),
    page("/projects/{project_id}/settings/audit-log/export", send),
)
