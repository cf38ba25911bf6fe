"""Hand out a job. Everything about a claim happens in one transaction, or not at all."""

from giornata.control.build_lease import build_lease
from giornata.control.context import Caller, Context
from giornata.control.end_attempt import end_attempt
from giornata.control.permissions import require_node
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_store import AttemptRow, JobRow, NodeSighting, Wanted
from giornata.control.renew_lease import renew_lease
from giornata.domain.attempt import lease_expires_at_ms
from giornata.domain.errors import Conflict
from giornata.domain.reasons import Reason
from giornata.protocol.events import EventType
from giornata.protocol.work import Claim, ClaimReply, NodeInfo, Order

# A node that waits may ask often; that it still waits is written down this often.
SEEN_EVERY_MS = 10_000


def claim_once(ctx: Context, caller: Caller, claim: Claim, *, just_came: bool = False) -> ClaimReply:
    """A lease, or why there is none. Does not wait.

    It writes nothing while there is nothing, unless the claim `just_came`: then the node is noted anyway, and a look
    before would only cost those who do get a job.

    Repeating a `request_id` whose attempt lives gives the same lease with the same token; repeating one whose
    attempt has ended gives nothing. Raises Forbidden for a key that is no node's, and Conflict when the node's id
    belongs to another project.
    """
    require_node(caller)
    now_ms = ctx.clock.now_ms()
    wanted = Wanted(
        kinds=claim.kinds,
        held_models=claim.held_models,
        machine_id=claim.node.machine_id,
        project_id=None if caller.serves_all_projects else caller.project_id,
    )
    nothing = _nothing_new(ctx, caller, claim, wanted, now_ms=now_ms) if not just_came else None
    if nothing is not None:
        return nothing
    with ctx.store.begin() as tx:
        node = tx.nodes.see(_sighting(caller, claim), at_ms=now_ms)
        if node is None:
            raise Conflict(f"the node id {claim.node.node_id} belongs to another project; draw another one")
        # Of two equal claims at once the second stood waiting for the node's row: only now is the answer sure.
        earlier = tx.attempts.of_request(node.id, claim.request_id)
        if earlier is None:
            return _draining() if node.draining else _take(tx, ctx, claim, wanted, at_ms=now_ms)
    # In a transaction that does not hold the node's row: heartbeats lock the job before the node.
    with ctx.store.begin() as tx:
        return _again(tx, ctx, earlier, at_ms=now_ms)


def _nothing_new(ctx: Context, caller: Caller, claim: Claim, wanted: Wanted, *, now_ms: int) -> ClaimReply | None:
    """The answer to a node that waits while nothing happens, found without writing anything; None: find out."""
    with ctx.store.read() as tx:
        node = tx.nodes.get(claim.node.node_id)
        if node is None or node.project_id != caller.project_id or node.last_seen_at_ms + SEEN_EVERY_MS <= now_ms:
            return None
        if tx.attempts.of_request(node.id, claim.request_id) is not None:
            return None
        if node.draining:
            return _draining()
        return None if tx.jobs.claimable(wanted) else _why_nothing(tx, wanted)


def _take(tx: Transaction, ctx: Context, claim: Claim, wanted: Wanted, *, at_ms: int) -> ClaimReply:
    attempt_id = ctx.names.new("att")
    job = tx.jobs.take(wanted, attempt_id=attempt_id, at_ms=at_ms)
    if job is None:
        return _why_nothing(tx, wanted)
    _end_silent(tx, job, claim.node, at_ms=at_ms)
    attempt = AttemptRow(
        id=attempt_id,
        job_id=job.id,
        number=job.attempt_count,
        node_id=claim.node.node_id,
        machine_id=claim.node.machine_id,
        node_name=claim.node.name,
        price_micro_usd_per_hour=claim.node.price_micro_usd_per_hour,
        started_at_ms=at_ms,
        first_step_at_ms=None,
        renewed_at_ms=at_ms,
        lease_expires_at_ms=lease_expires_at_ms(now_ms=at_ms, lease_s=ctx.policy.lease_s),
        ended_at_ms=None,
        lapsed=False,
        reason=None,
        start_step=job.committed_step,
        last_step=job.committed_step,
        committed_step=job.committed_step,
        order=Order.CONTINUE,
    )
    _begin(tx, job, attempt, request_id=claim.request_id)
    return ClaimReply(lease=build_lease(tx, ctx, job, attempt, at_ms=at_ms))


def _begin(tx: Transaction, job: JobRow, attempt: AttemptRow, *, request_id: str) -> None:
    at_ms = attempt.started_at_ms
    tx.attempts.insert(attempt, request_id=request_id)
    tx.ledger.open(job, attempt, at_ms=at_ms)
    data = {
        "node_id": attempt.node_id,
        "machine_id": attempt.machine_id,
        "node_name": attempt.node_name,
        "resume_step": attempt.start_step,
    }
    tx.events.add(job.id, job.project_id, EventType.ATTEMPT_STARTED, attempt.number, data, at_ms)


def _end_silent(tx: Transaction, job: JobRow, node: NodeInfo, *, at_ms: int) -> None:
    """The attempt that lapsed and might have come back may no longer: somebody else has the job now."""
    silent = tx.attempts.live_of_job(job.id) if job.attempt_count > 1 else None
    if silent is None:
        return
    same = (silent.machine_id, silent.node_name) == (node.machine_id, node.name)
    reason = Reason.SUPERSEDED if same else Reason.LEASE_EXPIRED
    message = "its node asked for work again" if same else "its node fell silent, and another took the job"
    end_attempt(tx, job, silent, reason=reason, at_ms=at_ms, alive=False, message=message)


def _again(tx: Transaction, ctx: Context, earlier: AttemptRow, *, at_ms: int) -> ClaimReply:
    """The reply to a claim got lost, or the claim was sent twice."""
    job = tx.jobs.lock(earlier.job_id)
    attempt = tx.attempts.get(earlier.id)
    if job is None or attempt is None or attempt.ended_at_ms is not None:
        return ClaimReply(
            reason="claim-repeated-after-end",
            detail="the attempt that this request id began has ended; claim with a new request id",
        )
    # The node counts its lease from this request, so the server must not count from an earlier one.
    renewed = renew_lease(tx, ctx, job, attempt, at_ms=at_ms)
    return ClaimReply(lease=build_lease(tx, ctx, job, renewed, at_ms=at_ms))


def _draining() -> ClaimReply:
    return ClaimReply(reason="draining", detail="this node is to leave and gets no more work", drain=True)


def _why_nothing(tx: Transaction, wanted: Wanted) -> ClaimReply:
    reason = tx.jobs.why_nothing(wanted)
    details = {
        "empty-queue": "no job is waiting",
        "banned": "every job that waits has failed on this machine before; another machine is needed",
        "no-such-kind": f"jobs are waiting, but of none of the kinds {', '.join(wanted.kinds)}",
    }
    return ClaimReply(reason=reason, detail=details[reason])


def _sighting(caller: Caller, claim: Claim) -> NodeSighting:
    node = claim.node
    return NodeSighting(
        id=node.node_id,
        project_id=caller.project_id,
        machine_id=node.machine_id,
        name=node.name,
        fleet=node.fleet,
        pid=node.pid,
        engine_pid=node.engine_pid,
        device=node.device,
        vram_bytes=node.vram_bytes,
        price_micro_usd_per_hour=node.price_micro_usd_per_hour,
        kinds=claim.kinds,
        held_models=claim.held_models,
        versions=node.versions,
    )
