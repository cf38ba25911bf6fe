"""Routes of nodes: claim with a node's key, everything else with the lease's token."""

import time
from contextlib import nullcontext
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request, Response, status
from starlette.concurrency import run_in_threadpool

from giornata.api.replies.openapi import ATTEMPT, refusals
from giornata.api.requests.callers import Attempt, Ctx, Settings, User, Wake
from giornata.api.requests.lists import LARGEST_ID, UploadId
from giornata.api.requests.open_connections import counted
from giornata.control.access.authenticate import require_standing
from giornata.control.attempts import commit, heartbeat, report
from giornata.control.attempts import reject_checkpoint as rejecting_checkpoint
from giornata.control.attempts.claiming import claim, known_node
from giornata.control.attempts.ending import complete, reported_ends
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.pictures import picture_report, picture_uploads
from giornata.control.pictures.await_annotations import keep_annotation
from giornata.control.storage import uploads
from giornata.domain.protocol_versions import PATTERN, agreed_version, versions_of
from giornata.protocol import PROTOCOL_HEADER, SPOKEN
from giornata.protocol.node.node_checks import ChecksNoted, NodeChecks, NodePolicy
from giornata.protocol.node.pictures import PictureResults, PictureResultsReply, PictureUploads, PictureUploadUrls
from giornata.protocol.node.work import (
    AttemptEnded,
    CacheReply,
    Claim,
    ClaimReply,
    CommitArtifact,
    CommitCache,
    CommitCheckpoint,
    Committed,
    CompleteAttempt,
    FailAttempt,
    Heartbeat,
    HeartbeatReply,
    LogLines,
    MetricBatch,
    NoticeReport,
    ReleaseAttempt,
)
from giornata.protocol.strict_json import Json
from giornata.protocol.uploads import RenewParts, UploadReply, UploadRequest, UploadTicket


def agree_on_version(
    response: Response,
    said: Annotated[
        str | None,
        Header(
            alias=PROTOCOL_HEADER,
            pattern=PATTERN,
            description="Versions of the protocol that the node speaks, such as `2` or `1-2`. The reply's header of "
            "this name has the one that both will speak. Without it: 1.",
        ),
    ] = None,
) -> None:
    """Answer a node with the version that both speak. Raises ProtocolMismatch when there is none."""
    response.headers[PROTOCOL_HEADER] = str(agreed_version(node=versions_of(said), server=SPOKEN))


# The short way of claims and checks takes only nodes of this version: `fast_routes`.
router = APIRouter(prefix="/v1/node", tags=["node"], dependencies=[Depends(agree_on_version)])
attempts = APIRouter(prefix="/v1/node/attempts/{attempt_id}", tags=["node"])

CacheKey = Annotated[str, Path(max_length=255, pattern=r"^[A-Za-z0-9._:/-]+$")]
NO_BODY = status.HTTP_204_NO_CONTENT
NOTHING_FOR_ANYBODY = frozenset({"empty-queue", "no-such-kind", "no-such-companion"})
# So that a client which went away is soon noticed.
LONGEST_POLL_S = 5.0


@router.post("/claim", responses=refusals(401, 403, 409, 429))
async def claim_job(
    *, request: Request, ctx: Ctx, caller: User, settings: Settings, wakeup: Wake, body: Json[Claim]
) -> ClaimReply:
    """Return a job, or the reason why there is none. The reply waits up to `wait_s` for a job.

    A client that lost the reply repeats its `request_id` and gets the same job.
    """
    asked, ends_s = claim.Asked(caller=caller, claim=body), time.monotonic() + body.wait_s
    state = request.app.state
    slot = counted(state, state.waiting_claims, caller) if body.wait_s else nullcontext()
    with slot, wakeup.listen(_waits_for(caller, body)) as listener:
        # A look before would only cost those who do get a job.
        nothing = None
        while True:
            reply: ClaimReply = nothing or await request.app.state.claims.ask(asked)
            left_s = ends_s - time.monotonic()
            if reply.granted is not None or reply.prefetch is not None or reply.drain:
                return reply
            if reply.reason in NOTHING_FOR_ANYBODY:
                listener.nothing()
            else:
                listener.not_mine()
            if left_s <= 0 or wakeup.closed:
                return reply
            # However many wait, together they ask as often as one.
            poll_s = max(
                settings.claim_poll_s, min(settings.claim_poll_s * listener.waiting_requests, LONGEST_POLL_S)
            )
            await listener.wait(min(left_s, poll_s))
            if await request.is_disconnected():
                return reply
            nothing = await wakeup.look(_nothing_yet, ctx, asked)


def _nothing_yet(ctx: Context, asked: claim.Asked) -> ClaimReply | None:
    """Return `claim.nothing_yet` for a waiting claim. Raises Unauthenticated when the key was revoked meanwhile."""
    require_standing(ctx, asked.caller)
    return claim.nothing_yet(ctx, asked)


def _waits_for(caller: Caller, wanted: Claim) -> tuple[frozenset[str], str | None, str | None]:
    """Return the fields by which claims find a queue empty together."""
    return frozenset(wanted.kinds), None if caller.serves_all_projects else caller.project_id, wanted.joint_key


@router.get("/policy", responses=refusals(401, 403, 409))
def get_node_policy(
    ctx: Ctx,
    caller: User,
    fleet: Annotated[str, Query(max_length=128, description="Name of the node's fleet.")] = "local",
) -> NodePolicy:
    """Return the fleet's demands on its nodes, with URLs to measure the link; empty for a fleet that is not known."""
    return known_node.node_policy(ctx, caller, fleet)


@router.post("/checks", responses=refusals(401, 403, 409))
def note_checks(ctx: Ctx, caller: User, body: Json[NodeChecks]) -> ChecksNoted:
    """Record the results of a node's checks. `GET /v1/nodes` shows the latest."""
    return known_node.note_checks(ctx, caller, body)


@attempts.post("/heartbeat", responses=ATTEMPT, operation_id="heartbeat")
async def beat(request: Request, attempt_id: Attempt, body: Json[Heartbeat]) -> HeartbeatReply:
    """Renew the lease. 409 `lease-lost`: another node has the job, or it has ended; stop work on it at once."""
    reply: HeartbeatReply = await request.app.state.beats.ask(heartbeat.Beat(attempt_id=attempt_id, said=body))
    return reply


@attempts.post("/log", status_code=NO_BODY, responses=ATTEMPT)
def append_log(ctx: Ctx, attempt_id: Attempt, body: Json[LogLines]) -> None:
    """Append lines to the job's log. Lines that the log has already are not added again."""
    report.add_log_lines(ctx, attempt_id, body)


@attempts.post("/metrics", status_code=NO_BODY, responses=ATTEMPT)
def put_metrics(ctx: Ctx, attempt_id: Attempt, body: Json[MetricBatch]) -> None:
    """Record the attempt's metrics by step."""
    report.put_metrics(ctx, attempt_id, body)


@attempts.post("/notice", status_code=NO_BODY, responses=ATTEMPT)
def add_notice(ctx: Ctx, attempt_id: Attempt, body: Json[NoticeReport]) -> None:
    """Add a notice to the job's events."""
    report.add_notice(ctx, attempt_id, body)


@attempts.post("/uploads", responses=ATTEMPT)
def request_attempt_uploads(ctx: Ctx, attempt_id: Attempt, body: Json[UploadRequest]) -> UploadReply:
    """Return signed URLs for files that the project does not have yet."""
    return uploads.request_attempt_uploads(ctx, attempt_id, body)


@attempts.post("/uploads/{upload_id}/urls", responses=ATTEMPT)
def renew_attempt_upload(ctx: Ctx, attempt_id: Attempt, upload_id: UploadId, body: Json[RenewParts]) -> UploadTicket:
    """Return new URLs for an upload whose URLs have expired."""
    return uploads.renew_attempt_upload(ctx, attempt_id, upload_id, body)


@attempts.post("/checkpoints", responses=ATTEMPT)
def commit_checkpoint(ctx: Ctx, attempt_id: Attempt, body: Json[CommitCheckpoint]) -> Committed:
    """Commit an uploaded checkpoint, after verifying its bytes. May be repeated."""
    return commit.commit_checkpoint(ctx, attempt_id, body)


@attempts.post("/checkpoints/{step}/reject", status_code=NO_BODY, responses=ATTEMPT)
def reject_checkpoint(
    ctx: Ctx,
    attempt_id: Attempt,
    step: Annotated[int, Path(ge=0, le=LARGEST_ID)],
    message: Annotated[str, Body(embed=True, max_length=4000)],
) -> None:
    """Reject a committed checkpoint whose bytes are damaged, to go on with the one before.

    The server verifies the bytes itself: if they are sound, other attempts may use the checkpoint. May be repeated.
    """
    rejecting_checkpoint.reject_checkpoint(ctx, attempt_id, step, message)


@attempts.post("/artifacts", responses=ATTEMPT)
def commit_artifact(ctx: Ctx, attempt_id: Attempt, body: Json[CommitArtifact]) -> Committed:
    """Commit an uploaded artifact, after verifying its bytes. May be repeated."""
    return commit.commit_artifact(ctx, attempt_id, body)


@attempts.get("/cache/{key:path}", responses=ATTEMPT)
def get_cache(ctx: Ctx, attempt_id: Attempt, key: CacheKey) -> CacheReply:
    """Return the file that an earlier job of the project left under this key, if any."""
    return uploads.get_cache(ctx, attempt_id, key)


@attempts.put("/cache/{key:path}", responses=ATTEMPT)
def commit_cache(ctx: Ctx, attempt_id: Attempt, key: CacheKey, body: Json[CommitCache]) -> Committed:
    """Commit uploaded bytes under this key. The first commit stands."""
    return keep_annotation(ctx, attempt_id, key, body)


@attempts.post("/picture-uploads", responses=ATTEMPT, operation_id="request_picture_uploads")
def request_picture_uploads(ctx: Ctx, attempt_id: Attempt, body: Json[PictureUploads]) -> PictureUploadUrls:
    """Return a signed PUT for each picture of the lease that is still wanted."""
    return picture_uploads.picture_uploads(ctx, attempt_id, body)


@attempts.post("/pictures", responses=ATTEMPT)
async def report_pictures(
    *, request: Request, ctx: Ctx, attempt_id: Attempt, wakeup: Wake, body: Json[PictureResults]
) -> PictureResultsReply:
    """Commit uploaded pictures as results of their orders, and take back those that failed. May be repeated."""
    report = await run_in_threadpool(picture_report.checked, ctx, attempt_id, body)
    reply: PictureResultsReply = await request.app.state.picture_results.ask(report)
    if body.failed:
        wakeup.notify()
    return reply


@attempts.post("/complete", responses=ATTEMPT)
async def complete_attempt(request: Request, attempt_id: Attempt, body: Json[CompleteAttempt]) -> AttemptEnded:
    """Complete the job of this attempt. May be repeated."""
    done = complete.Completion(attempt_id=attempt_id, report=body)
    ended: AttemptEnded = await request.app.state.completions.ask(done)
    return ended


@attempts.post("/fail", responses=ATTEMPT)
def fail_attempt(ctx: Ctx, attempt_id: Attempt, wakeup: Wake, body: Json[FailAttempt]) -> AttemptEnded:
    """Fail an attempt that cannot go on. May be repeated; it counts once."""
    ended = reported_ends.fail(ctx, attempt_id, body)
    wakeup.notify()
    return ended


@attempts.post("/release", responses=ATTEMPT)
def release_attempt(ctx: Ctx, attempt_id: Attempt, wakeup: Wake, body: Json[ReleaseAttempt]) -> AttemptEnded:
    """Give the job back; another node goes on with it. May be repeated."""
    ended = reported_ends.release(ctx, attempt_id, body)
    wakeup.notify()
    return ended
