"""Routes of what a job leaves behind: events, logs, metrics, checkpoints, artifacts."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from giornata.api.replies.event_stream import MEDIA_TYPE, Following
from giornata.api.replies.openapi import USER_ITEM, refusals
from giornata.api.requests.callers import Ctx, ReadLists, User
from giornata.api.requests.lists import After, AfterName, AfterStep, BelowStep, FewOrAll, JobId, Limit
from giornata.control.jobs.reading import job_outputs, provenance
from giornata.control.jobs.reading.history_heads import HistoryPart
from giornata.control.jobs.reading.read_curve import LEAST_POINTS, MOST_POINTS, read_curve
from giornata.protocol.jobs import ArtifactPage, CheckpointPage, EventPage, LogPage, MetricPage
from giornata.protocol.provenance import SignedProvenance

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["histories"])

Points = Annotated[
    int | None,
    Query(
        ge=LEAST_POINTS,
        le=MOST_POINTS,
        description="Maximum number of points, from steps over the whole job. There are no further pages, and no "
        "`limit`.",
    ),
]
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page; with `Accept: text/event-stream` a stream that ends after the job has.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
    },
    **refusals(401, 403, 404, 429),
    204: {"description": "The job has ended, and the stream has nothing more to send."},
}


@router.get("/events", response_model=EventPage, responses=STREAMED)
async def list_events(
    *, ctx: Ctx, lists: ReadLists, caller: User, asked: Following, job_id: JobId, after: After = 0, limit: Limit = 100
) -> Response:
    """Return or stream the job's events, oldest first."""
    read = partial(job_outputs.read_events, ctx, caller, job_id)
    if asked.is_for_stream:
        return await asked.respond(HistoryPart.EVENTS, job_id, read, after=after)
    return await lists.page(read, after, limit)


@router.get("/logs", response_model=LogPage, responses=STREAMED)
async def list_logs(
    *, ctx: Ctx, lists: ReadLists, caller: User, asked: Following, job_id: JobId, after: After = 0, limit: Limit = 500
) -> Response:
    """Return or stream the lines that the workload wrote, oldest first."""
    read = partial(job_outputs.read_logs, ctx, caller, job_id)
    if asked.is_for_stream:
        return await asked.respond(HistoryPart.LOGS, job_id, read, after=after)
    return await lists.page(read, after, limit)


@router.get("/metrics", responses=USER_ITEM, response_model=MetricPage)
async def list_metrics(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    job_id: JobId,
    after_step: AfterStep = -1,
    limit: Limit = 500,
    points: Points = None,
) -> Response:
    """Return the job's metrics by ascending steps. With `points`, a selection of all steps, with the last."""
    if points is not None:
        return await lists.page(read_curve, ctx, caller, job_id, after_step=after_step, points=points)
    return await lists.page(job_outputs.read_metrics, ctx, caller, job_id, after_step=after_step, limit=limit)


@router.get("/checkpoints", responses=USER_ITEM, response_model=CheckpointPage)
async def list_checkpoints(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    job_id: JobId,
    below_step: BelowStep = None,
    limit: FewOrAll = None,
) -> Response:
    """Return committed checkpoints with URLs to fetch them, highest step first."""
    read = job_outputs.read_checkpoints
    return await lists.page(read, ctx, caller, job_id, below_step=below_step, limit=limit)


@router.get("/provenance", responses=refusals(401, 403, 404, 422))
def get_provenance(ctx: Ctx, caller: User, job_id: JobId) -> SignedProvenance:
    """Return the signed record of a training job: checkpoints, machines, audits, files."""
    return provenance.read_provenance(ctx, caller, job_id)


@router.get("/artifacts", responses=USER_ITEM, response_model=ArtifactPage)
async def list_artifacts(
    *, ctx: Ctx, lists: ReadLists, caller: User, job_id: JobId, after: AfterName = "", limit: FewOrAll = None
) -> Response:
    """Return results with URLs to fetch them, by name."""
    return await lists.page(job_outputs.read_artifacts, ctx, caller, job_id, after=after, limit=limit)
