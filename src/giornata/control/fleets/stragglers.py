"""Move jobs away from attempts that are far slower than similar ones, or stand still, if that pays."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from giornata.control.context import Context
from giornata.control.ports.node_queries.machine_store import PaceRow, StepAwaited
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.machine_ids import owner_of
from giornata.domain.machines.stragglers import (
    Mark,
    Member,
    Trail,
    is_as_usual,
    is_slow,
    is_stuck,
    may_move_at_once,
    move_pays,
    paces_s,
    wait_for_a_node_s,
)
from giornata.protocol.events import EventType
from giornata.protocol.node.work import Order

HISTORY_MS = 7 * 24 * 3_600_000
HISTORY_ROWS = 1000
NODE_START_S = 600.0  # half of a provider's nodes are there after ten minutes
Cohort = tuple[str | None, str, str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peers:
    """The members of a cohort, and the speeds that each of them is held against: made once for all."""

    members: Sequence[Member]
    ascending_s: Sequence[float]  # the pace of each machine


def move_stragglers(ctx: Context) -> int:
    """Order the release of slow and stuck attempts; returns how many. A loop calls it again and again.

    Of a cohort a share at a time, one at least: the next is looked at when one of them is done. Each is moved only if
    a node is free to take it, besides those for the ones already moved.
    """
    with ctx.store.only_here("stragglers") as ours:
        if not ours:
            return 0
        now_ms = ctx.clock.now_ms()
        with ctx.store.read() as tx:
            live = tx.paces.live()
            ended = tx.paces.ended(since_ms=now_ms - HISTORY_MS, limit=HISTORY_ROWS) if live else ()
            long_ago_ms = now_ms - round(ctx.policy.stragglers.second_step_s * 1000)
            waiting = tx.paces.without_a_step(started_before_ms=long_ago_ms)
        moved = sum(_release_stuck(ctx, each, now_ms=now_ms) for each in live if each.order == Order.CONTINUE)
        moved += sum(
            _release_silent(ctx, each, since_ms=each.started_at_ms, step_s=None, now_ms=now_ms) for each in waiting
        )
        recent_s = _recent_s(ctx, live)
        cohorts = _cohorts([*live, *ended], {**_whole_s(ctx, ended), **recent_s})
        sizes = Counter(_cohort(each) for each in live)
        leaving = Counter(_cohort(each) for each in live if each.order != Order.CONTINUE)
        for row in sorted(live, key=lambda each: -recent_s.get(each.attempt_id, 0.0)):
            cohort, step_s = _cohort(row), recent_s.get(row.attempt_id)
            most = may_move_at_once(live=sizes[cohort], policy=ctx.policy.stragglers)
            if row.order != Order.CONTINUE or leaving[cohort] >= most or step_s is None:
                continue
            ahead = leaving.total()
            if _release_slow(ctx, row, cohorts.get(cohort), step_s=step_s, ahead=ahead, now_ms=now_ms):
                leaving[cohort] += 1
                moved += 1
        return moved


def _release_slow(
    ctx: Context, row: PaceRow, peers: _Peers | None, *, step_s: float, ahead: int, now_ms: int
) -> bool:
    policy = ctx.policy.stragglers
    if peers is None or not row.shape_key or row.lapsed:
        return False
    if is_as_usual(step_s, ascending_s=peers.ascending_s, policy=policy):
        return False
    if not is_slow(step_s, machine_id=row.machine_id, cohort=peers.members, policy=policy):
        return False
    others = [each for each in peers.members if each.machine_id != row.machine_id]
    # By attempts, unlike the judgment: the job would go to one of those that are there now and take job after job.
    usual_s = median(each.step_s for each in others)
    steps_left = max(0, (row.total_steps or 0) - (row.stepped_to or 0))
    seen_since_ms = now_ms - round(ctx.policy.node_gone_after_s * 1000)
    with ctx.store.read() as tx:
        takers = tx.paces.takers(row, seen_since_ms=seen_since_ms)
    wait_s = wait_for_a_node_s(
        idle=takers.idle,
        busy=takers.busy,
        coming=takers.coming,
        job_s=usual_s * (row.total_steps or 0),
        coming_s=NODE_START_S,
        ahead=ahead,
    )
    if wait_s is None or not move_pays(
        steps_left=steps_left, step_s=step_s, others=others, wait_s=wait_s, policy=policy
    ):
        return False
    notice = {
        "name": "too-slow",
        "message": f"{step_s:.3g} s a step here, {usual_s:.3g} s on other machines with this device: it is moved",
        "step_s": step_s,
        "usual_step_s": usual_s,
    }
    return order_release(ctx, row.attempt_id, reason=Reason.TOO_SLOW, notice=notice)


def _release_stuck(ctx: Context, row: PaceRow, *, now_ms: int) -> bool:
    """Release an attempt that stands still. It beats, so its agent lives, and the agent's own watchdog did not see
    that the engine does nothing.
    """
    done = row.total_steps is not None and (row.stepped_to or 0) >= row.total_steps  # results are on their way
    if row.lapsed or done:
        return False
    stepped_at_ms = row.first_step_at_ms if row.stepped_at_ms is None else row.stepped_at_ms
    return _release_silent(ctx, row, since_ms=stepped_at_ms, step_s=_step_s(row), now_ms=now_ms)


def _release_silent(
    ctx: Context, row: PaceRow | StepAwaited, *, since_ms: int, step_s: float | None, now_ms: int
) -> bool:
    # Up to its last beat: a node that is silent is the lease's affair.
    silent_s = (min(now_ms, row.until_ms) - since_ms) / 1000
    if not is_stuck(silent_s=silent_s, step_s=step_s, policy=ctx.policy.stragglers):
        return False
    usual = "" if step_s is None else f", where one takes {step_s:.3g} s"
    notice = {
        "name": "stuck",
        "message": f"no step for {silent_s:.0f} s{usual}: it is moved",
        "step_s": step_s,
        "silent_s": silent_s,
    }
    return order_release(ctx, row.attempt_id, reason=Reason.TOO_SLOW, notice=notice)


def _cohorts(rows: Sequence[PaceRow], paces_by_attempt_s: Mapping[str, float]) -> Mapping[Cohort, _Peers]:
    found: dict[Cohort, list[Member]] = defaultdict(list)
    for row in rows:
        step_s = paces_by_attempt_s.get(row.attempt_id)
        if row.shape_key and step_s is not None:
            start_up_s = (row.first_step_at_ms - row.started_at_ms) / 1000
            member = Member(machine_id=row.machine_id, step_s=step_s, start_up_s=start_up_s)
            found[_cohort(row)].append(member)
    return {
        cohort: _Peers(members=members, ascending_s=sorted(paces_s(members).values()))
        for cohort, members in found.items()
    }


def _cohort(row: PaceRow) -> Cohort:
    # Machines are slow or not by comparison with machines of the same owner only.
    return owner_of(row.machine_id), row.device, row.kind, row.shape_key, row.width


def _recent_s(ctx: Context, live: Sequence[PaceRow]) -> Mapping[str, float]:
    """Return the seconds for each of the latest steps, by attempt; the first step, which compiles, is not among
    them.

    Each server remembers what it saw in its own turns. A server that has just started says nothing of an attempt
    until it has watched the attempt for long enough.
    """
    policy, before = ctx.policy.stragglers, ctx.memory.trails
    trails = {row.attempt_id: before.get(row.attempt_id) or Trail() for row in live}
    ctx.memory.trails = trails
    found = {}
    for row in live:
        if row.first_step is None or row.stepped_to is None or row.stepped_at_ms is None:
            continue
        trail, first = trails[row.attempt_id], Mark(row.first_step_at_ms, row.first_step)
        trail.follow(Mark(row.stepped_at_ms, row.stepped_to), first=first, policy=policy)
        step_s = trail.step_s(policy)
        if step_s is not None:
            found[row.attempt_id] = step_s
    return found


def _whole_s(ctx: Context, ended: Sequence[PaceRow]) -> Mapping[str, float]:
    """Return the seconds for each step of an ended attempt that was long enough, by attempt."""
    policy, found = ctx.policy.stragglers, {}
    for row in ended:
        step_s = _step_s(row)
        watched_s = ((row.stepped_at_ms or row.first_step_at_ms) - row.first_step_at_ms) / 1000
        steps = (row.stepped_to or 0) - (row.first_step or 0)
        if step_s is not None and watched_s >= policy.watched_s and steps >= policy.watched_steps:
            found[row.attempt_id] = step_s
    return found


def _step_s(row: PaceRow) -> float | None:
    """Return the seconds for a step between the first and the latest that became known."""
    if row.first_step is None or row.stepped_to is None or row.stepped_at_ms is None:
        return None
    steps = row.stepped_to - row.first_step
    return (row.stepped_at_ms - row.first_step_at_ms) / 1000 / steps if steps > 0 else None


def order_release(ctx: Context, attempt_id: str, *, reason: Reason, notice: Mapping[str, Any]) -> bool:
    """Order the release, and put the notice into the job's history; return False when the attempt has ended, lapsed,
    or has an order.

    The reply to the node's next heartbeat carries the order.
    """
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job = tx.jobs.lock_of_attempt(attempt_id)
        attempt = tx.attempts.get(attempt_id)
        if job is None or attempt is None or attempt.ended_at_ms is not None or attempt.lapsed:
            return False
        if attempt.order != Order.CONTINUE:
            return False
        tx.attempts.update_live(attempt_id, order=Order.RELEASE, order_reason=reason)
        tx.events.add(job.id, job.project_id, EventType.NOTICE, attempt.number, notice, now_ms)
        return True
