"""Routes of the audit log: its rows, its chains as JSON Lines, and their newest rows."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from giornata.api.replies.openapi import USER_ITEM
from giornata.api.requests.callers import Ctx, ReadLists, User
from giornata.api.requests.dates import Instant
from giornata.api.requests.lists import LARGEST_ID, Cursor, Limit
from giornata.control.access import read_audit_log
from giornata.control.access.read_audit_log import instant_ms
from giornata.control.ports.user_queries.audit_log_store import AuditFilter
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.protocol.account.audit_log import AuditLogHeads, AuditLogPage

router = APIRouter(prefix="/v1/audit-log", tags=["administration"])
MEDIA_TYPE = "application/jsonl"
ProjectFilter = Annotated[
    str | None,
    Query(
        max_length=64, description="Id of the project. Default: the caller's project; for an operator, all projects."
    ),
]
OneProject = Annotated[
    str | None, Query(max_length=64, description="Id of the project. Default: the caller's project.")
]


class AuditLogLines(Response):
    """A reply of JSON Lines: one JSON object a line."""

    media_type = MEDIA_TYPE


@router.get("", responses=USER_ITEM, response_model=AuditLogPage)
async def list_audit_log(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    actor: Annotated[str | None, Query(max_length=200, description="Id of a person or a key.")] = None,
    verb: Annotated[AuditVerb | None, Query(description="Action that the rows record, such as `key.create`.")] = None,
    target: Annotated[str | None, Query(max_length=512, description="Id or name of what was changed.")] = None,
    since: Annotated[Instant | None, Query(description="Only changes at or after this instant (RFC 3339).")] = None,
    until: Annotated[Instant | None, Query(description="Only changes before this instant (RFC 3339).")] = None,
    project_id: ProjectFilter = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Return who changed what, newest first."""
    wanted = AuditFilter(
        project_id=project_id,
        actor=actor,
        verb=verb,
        target=target,
        since_ms=instant_ms(since),
        until_ms=instant_ms(until),
    )
    return await lists.page(read_audit_log.list_audit_log, ctx, caller, wanted, cursor, limit)


@router.get("/heads", responses=USER_ITEM)
def get_audit_log_heads(ctx: Ctx, caller: User, project_id: ProjectFilter = None) -> AuditLogHeads:
    """Return the newest row of each chain. Kept elsewhere, it shows later that no row up to it was changed."""
    return read_audit_log.read_heads(ctx, caller, project_id)


@router.get(
    "/export",
    response_class=AuditLogLines,
    responses=USER_ITEM
    | {
        200: {
            "description": "One row a line, and last the head.",
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
        }
    },
)
async def export_audit_log(
    ctx: Ctx,
    caller: User,
    project_id: OneProject = None,
    after: Annotated[int, Query(ge=0, le=LARGEST_ID, description="Only rows with higher numbers.")] = 0,
    limit: Limit = 500,
) -> Response:
    """Return rows of one chain as JSON Lines, oldest first. The last line names the newest row of the chain."""
    lines = await run_in_threadpool(read_audit_log.export_lines, ctx, caller, project_id, after=after, limit=limit)
    return AuditLogLines("".join(f"{line}\n" for line in lines))
