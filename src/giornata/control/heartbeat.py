"""A node says that its attempt lives and how far it is. Writes no event rows but for the first step."""

from collections.abc import Mapping
from typing import Any

from giornata.control.context import Context
from giornata.control.fence import live
from giornata.control.interruptions import fleet_mtbi_s
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_store import AttemptRow, JobRow
from giornata.control.renew_lease import renew_lease
from giornata.domain.attempt import renew_every_s
from giornata.protocol.events import EventType
from giornata.protocol.work import Heartbeat, HeartbeatReply, Order


def heartbeat(ctx: Context, attempt_id: str, beat: Heartbeat) -> HeartbeatReply:
    """Renew the lease, note the progress, bill up to now; the reply says what the server wants of the node.

    Raises LeaseLost when the attempt has ended, whoever ended it; the message names the job's state.
    """
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = live(tx, attempt_id)
        renewed = _renew(tx, ctx, job, attempt, beat, at_ms=now_ms)
        tx.jobs.update(job.id, step=renewed.last_step, phase=beat.phase, **_announced(beat))
        if beat.metrics:
            tx.reports.put_metrics(attempt, {beat.step: beat.metrics}, at_ms=now_ms)
        draining = tx.nodes.beat(
            attempt.node_id, at_ms=now_ms, held_models=beat.held_models, engine_pid=beat.engine_pid
        )
        return HeartbeatReply(
            order=Order.DRAIN if draining else Order(renewed.order),
            lease_s=ctx.policy.lease_s,
            renew_every_s=renew_every_s(ctx.policy.lease_s),
            mtbi_s=fleet_mtbi_s(tx, ctx, at_ms=now_ms),
        )


def _renew(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, beat: Heartbeat, *, at_ms: int
) -> AttemptRow:
    first = attempt.first_step_at_ms is None and beat.step > attempt.start_step
    progress: dict[str, Any] = {
        # Beats may overtake one another on the way.
        "last_step": max(attempt.last_step, beat.step),
        "phase": beat.phase,
        # Not before its start, even if the clock was set back in between.
        "first_step_at_ms": max(at_ms, attempt.started_at_ms) if first else attempt.first_step_at_ms,
    }
    renewed = renew_lease(tx, ctx, job, attempt, at_ms=at_ms, **progress)
    if first:
        data = {"step": beat.step}
        tx.events.add(job.id, job.project_id, EventType.ATTEMPT_FIRST_STEP, attempt.number, data, at_ms)
    return renewed


def _announced(beat: Heartbeat) -> Mapping[str, Any]:
    """Kinds of one's own say only at work how many steps they have."""
    return {} if beat.total_steps is None else {"total_steps": beat.total_steps}
