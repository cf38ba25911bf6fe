"""Read what happened in the life of a job, as its timeline shows it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.node_queries.audit_store import ReplayAuditRow
from giornata.control.ports.user_queries.records import EventRecord
from giornata.control.timestamps import instant
from giornata.domain.errors import NotFound
from giornata.domain.jobs.audits import AuditState
from giornata.protocol.events import EventType
from giornata.protocol.project.admin import Scope

MOST_EVENTS, MOST_AUDITS = 90, 30
TYPES = (
    EventType.CHECKPOINT_COMMITTED,
    EventType.ARTIFACT_COMMITTED,
    EventType.ATTEMPT_LAPSED,
    EventType.ATTEMPT_RENEWED,
)
SHEET = re.compile(r"samples(-[0-9]{8})?\.(png|jpg|webp)\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentTime:
    """A time in which no heartbeat of an attempt was there in time. `until` is None when none came any more."""

    attempt: int
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedStretch:
    """Steps that other machines were to run again, and what came of it, at the instant of the latest change."""

    from_step: int
    to_step: int
    state: AuditState
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLife:
    """The happenings in the order of time. `checkpoints` are (step, instant), `validations` (file, instant)."""

    checkpoints: Sequence[tuple[int, datetime]] = ()
    validations: Sequence[tuple[str, datetime]] = ()
    silent: Sequence[SilentTime] = ()
    audits: Sequence[AuditedStretch] = ()


def read_life(ctx: Context, caller: Caller, job_id: str) -> JobLife:
    """Return the latest happenings of a job of the caller's project. Raises Forbidden, NotFound."""
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        if not tx.job_reads.exists(job_id, project_id=caller.project_id):
            raise NotFound(f"there is no job {job_id}")
        found = tx.job_reads.newest_events(job_id, project_id=caller.project_id, types=TYPES, limit=MOST_EVENTS)
        audits = tx.audits.of_job(job_id, latest=MOST_AUDITS)
    events = found[::-1]
    return JobLife(
        checkpoints=[
            (each.data["step"], instant(each.at_ms)) for each in events if each.type == EventType.CHECKPOINT_COMMITTED
        ],
        validations=[(each.data["name"], instant(each.at_ms)) for each in events if _is_sheet(each)],
        silent=_silent_times(events),
        audits=[_stretch(each) for each in audits],
    )


def _is_sheet(event: EventRecord) -> bool:
    return event.type == EventType.ARTIFACT_COMMITTED and SHEET.search(event.data["name"]) is not None


def _silent_times(events: Sequence[EventRecord]) -> list[SilentTime]:
    """Return for each lapse the time until the same attempt was renewed."""
    found = []
    for place, each in enumerate(events):
        if each.type != EventType.ATTEMPT_LAPSED or each.attempt_number is None:
            continue
        later = (
            other.at_ms
            for other in events[place:]
            if (other.type, other.attempt_number) == (EventType.ATTEMPT_RENEWED, each.attempt_number)
        )
        since = instant(each.at_ms)
        found.append(SilentTime(attempt=each.attempt_number, since=since, until=instant(next(later, None))))
    return found


def _stretch(audit: ReplayAuditRow) -> AuditedStretch:
    at_ms = audit.created_at_ms if audit.decided_at_ms is None else audit.decided_at_ms
    return AuditedStretch(from_step=audit.from_step, to_step=audit.to_step, state=audit.state, at=instant(at_ms))
