"""Take the heartbeats of nodes: their attempts live, and how far they are. Writes no event rows but for the first
step.

Heartbeats that came in while the database was at work are done in one transaction: its cost is shared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from giornata.control.attempts.ending.enforce_budgets import enforce_budgets, enforce_releases, note_told
from giornata.control.attempts.renew_lease import renew_leases
from giornata.control.attempts.report import room_for_beat
from giornata.control.budgets.history import fleet_mtbi_s
from giornata.control.context import Context
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow, NewEvent, NodeBeat
from giornata.control.ports.store import Transaction
from giornata.control.storage.fence import live_each
from giornata.domain.errors import LeaseLost
from giornata.domain.jobs.attempt import renew_every_s
from giornata.protocol.events import EventType
from giornata.protocol.node.work import Heartbeat, HeartbeatReply, Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat and the id of its attempt."""

    attempt_id: str
    said: Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class _LockedHeartbeat:
    """A beat and the locked rows of its attempt."""

    job: JobRow
    attempt: AttemptRow
    said: Heartbeat

    @property
    def is_first_step(self) -> bool:
        return self.attempt.first_step_at_ms is None and self.said.step > self.attempt.start_step

    @property
    def is_progress(self) -> bool:
        known = self.attempt.stepped_to
        return self.is_first_step or (known is not None and self.said.step > known)


def heartbeat(ctx: Context, attempt_id: str, beat: Heartbeat) -> HeartbeatReply:
    """Take one heartbeat, as `heartbeat_each` does. Raises LeaseLost."""
    (reply,) = heartbeat_each(ctx, [Beat(attempt_id=attempt_id, said=beat)])
    if isinstance(reply, LeaseLost):
        raise reply
    return reply


def heartbeat_each(ctx: Context, beats: Sequence[Beat]) -> list[HeartbeatReply | LeaseLost]:
    """Renew the leases, note the progress, bill up to now; the replies carry the server's orders to the nodes.

    No two of one attempt. The answer is LeaseLost when the attempt has ended, whoever ended it; its message names
    the job's state.
    """
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        found = live_each(tx, [beat.attempt_id for beat in beats])
        lost = {key: value for key, value in found.items() if isinstance(value, LeaseLost)}
        held = [
            _LockedHeartbeat(job=value[0], attempt=value[1], said=beat.said)
            for beat in beats
            if not isinstance(value := found[beat.attempt_id], LeaseLost)
        ]
        renewed = _renew(tx, ctx, held, at_ms=now_ms) if held else []
        replies = _replies(tx, ctx, held, renewed, at_ms=now_ms) if held else {}
    late = enforce_releases(ctx, [each for each in renewed if not isinstance(replies[each.id], LeaseLost)])
    replies = {**lost, **replies, **late}
    return [replies[beat.attempt_id] for beat in beats]


def _renew(tx: Transaction, ctx: Context, held: Sequence[_LockedHeartbeat], *, at_ms: int) -> list[AttemptRow]:
    renewals = [(each.job, each.attempt, _progress(each, at_ms=at_ms)) for each in held]
    renewed = renew_leases(tx, ctx, renewals, at_ms=at_ms)
    # A lease of pictures tells of its progress by results.
    at_jobs = [(each, attempt) for each, attempt in zip(held, renewed, strict=True) if not attempt.pictures]
    if at_jobs:
        _note_progress(tx, ctx, at_jobs, at_ms=at_ms)
    return renewed


def _replies(
    tx: Transaction, ctx: Context, held: Sequence[_LockedHeartbeat], renewed: Sequence[AttemptRow], *, at_ms: int
) -> Mapping[str, HeartbeatReply | LeaseLost]:
    beats = {
        each.attempt.node_id: NodeBeat(
            id=each.attempt.node_id, held_models=each.said.held_models, engine_pid=each.said.engine_pid
        )
        for each in held
    }
    draining = tx.nodes.beat_each(list(beats.values()), at_ms=at_ms)
    mtbi_s = fleet_mtbi_s(tx, ctx, at_ms=at_ms)
    note_told(tx, renewed, at_ms=at_ms)
    at_jobs = [(each.job, attempt) for each, attempt in zip(held, renewed, strict=True) if not attempt.pictures]
    orders = enforce_budgets(tx, ctx, at_jobs, at_ms=at_ms)

    def reply(attempt: AttemptRow) -> HeartbeatReply | LeaseLost:
        order = orders.get(attempt.id, Order(attempt.order))
        if isinstance(order, LeaseLost):
            return order
        return HeartbeatReply(
            order=Order.DRAIN if attempt.node_id in draining else order,
            lease_s=ctx.policy.lease_s,
            renew_every_s=renew_every_s(ctx.policy.lease_s),
            mtbi_s=mtbi_s,
        )

    return {attempt.id: reply(attempt) for attempt in renewed}


def _progress(held: _LockedHeartbeat, *, at_ms: int) -> Mapping[str, Any]:
    attempt = held.attempt
    return {
        # Beats may overtake one another on the way.
        "last_step": max(attempt.last_step, held.said.step),
        "phase": held.said.phase,
        # Not before its start, even if the clock was set back in between.
        "first_step_at_ms": max(at_ms, attempt.started_at_ms) if held.is_first_step else attempt.first_step_at_ms,
        "first_step": held.said.step if held.is_first_step else attempt.first_step,
        "stepped_to": held.said.step if held.is_progress else attempt.stepped_to,
        "stepped_at_ms": max(at_ms, attempt.started_at_ms) if held.is_progress else attempt.stepped_at_ms,
    }


def _note_progress(
    tx: Transaction, ctx: Context, at_jobs: Sequence[tuple[_LockedHeartbeat, AttemptRow]], *, at_ms: int
) -> None:
    steps = {
        each.job.id: {"step": attempt.last_step, "phase": each.said.phase, **_announced(each.said)}
        for each, attempt in at_jobs
    }
    tx.jobs.update_each(steps)
    held = [each for each, _ in at_jobs]
    measured = [
        (each.attempt, each.said.step, kept)
        for each in held
        if each.said.metrics and (kept := room_for_beat(ctx, each.job.id, each.said.step, each.said.metrics))
    ]
    tx.reports.put_metrics(measured, at_ms=at_ms)
    tx.events.add_each(
        [
            NewEvent(
                job_id=each.job.id,
                project_id=each.job.project_id,
                type=EventType.ATTEMPT_FIRST_STEP,
                attempt_number=each.attempt.number,
                data={"step": each.said.step},
                at_ms=at_ms,
            )
            for each in held
            if each.is_first_step
        ]
    )


def _announced(beat: Heartbeat) -> Mapping[str, Any]:
    """Return the announced total of steps: kinds of one's own say only at work how many steps they have."""
    return {} if beat.total_steps is None else {"total_steps": beat.total_steps}
