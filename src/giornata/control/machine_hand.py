"""An operator's hand on machines: see them, quarantine one, let one go."""

from giornata.control.context import Caller, Context
from giornata.control.instants import instant
from giornata.control.lift_bans import lift
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.permissions import require_root_admin
from giornata.control.ports.store import Transaction
from giornata.domain.errors import NotFound
from giornata.domain.health import Failure as HeldFailure
from giornata.domain.health import Health, MachineState, cool_down_ends_ms, let_go, newcomer, shut_out, strikes_at
from giornata.domain.job import JobState
from giornata.protocol.fleets import HeldFailure as ShownFailure
from giornata.protocol.fleets import Machine, MachinePage


def list_machines(
    ctx: Context, caller: Caller, *, state: MachineState | None, cursor: str | None, limit: int
) -> MachinePage:
    """How machines fare, one line for each kind of job; latest change of state first. Raises Forbidden, InvalidInput.

    A machine that never ended a job is not among them: nothing is known of it.
    """
    require_root_admin(caller)
    check_limit(limit)
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        rows = tx.machines.page(
            state=None if state is None else state.value, before=decode_cursor(cursor), limit=limit + 1
        )
    page, following = cut(rows, limit, lambda each: (each.since_ms, f"{each.machine_id} {each.kind}"))
    return MachinePage(items=tuple(_shown(ctx, each, now_ms) for each in page), next=following)


def quarantine_machine(ctx: Context, caller: Caller, machine_id: str, *, reason: str) -> MachinePage:
    """No more work for it, of any kind that it does or did, until it is let go. What it is at goes on to its end.

    May be repeated. Raises Forbidden, and NotFound for a machine that was never heard of.
    """
    require_root_admin(caller)
    now_ms, policy = ctx.clock.now_ms(), ctx.policy.health
    with ctx.store.begin() as tx:
        kinds = {each.kind for each in tx.machines.of_machine(machine_id)} | tx.machines.kinds_of(machine_id)
        if not kinds:
            raise NotFound(f"there is no machine {machine_id}")
        for kind in sorted(kinds):
            tx.machines.make_sure(newcomer(machine_id, kind, policy=policy, at_ms=now_ms))
        for held in tx.machines.lock_each([(machine_id, kind) for kind in sorted(kinds)]).values():
            tx.machines.put(shut_out(held, reason=reason, at_ms=now_ms))
        return _of_machine(ctx, tx, machine_id, now_ms)


def release_machine(ctx: Context, caller: Caller, machine_id: str) -> MachinePage:
    """Nothing is held against it any more, and queued jobs that it failed may go back to it. May be repeated.

    Raises Forbidden, and NotFound if nothing was held against it.
    """
    require_root_admin(caller)
    now_ms, policy = ctx.clock.now_ms(), ctx.policy.health
    with ctx.store.begin() as tx:
        keys = [(each.machine_id, each.kind) for each in tx.machines.of_machine(machine_id)]
        lifted = _lift_bans(tx, machine_id, at_ms=now_ms)
        if not keys and not lifted:
            raise NotFound(f"nothing is held against a machine {machine_id}")
        for held in tx.machines.lock_each(keys).values():
            tx.machines.put(let_go(held, policy=policy, at_ms=now_ms))
        return _of_machine(ctx, tx, machine_id, now_ms)


def _lift_bans(tx: Transaction, machine_id: str, *, at_ms: int) -> int:
    """How many queued jobs may go back to the machine. Jobs are locked before machines."""
    kinds = tx.machines.kinds_of(machine_id)
    job_ids = tx.bans.on_machine(machine_id, kinds) if kinds else ()
    for job_id in job_ids:
        job = tx.jobs.lock(job_id)
        if job is not None and job.state is JobState.QUEUED:
            lift(tx, job, [machine_id], because="an operator released the machine", at_ms=at_ms)
    return len(job_ids)


def _of_machine(ctx: Context, tx: Transaction, machine_id: str, now_ms: int) -> MachinePage:
    return MachinePage(items=tuple(_shown(ctx, each, now_ms) for each in tx.machines.of_machine(machine_id)))


def _shown(ctx: Context, health: Health, now_ms: int) -> Machine:
    policy = ctx.policy.health
    ends_ms = cool_down_ends_ms(health, policy=policy)
    return Machine(
        machine_id=health.machine_id,
        kind=health.kind,
        state=health.state.value,
        reason=health.reason,
        since=instant(health.since_ms),
        until=None if ends_ms is None else instant(ends_ms),
        strikes=round(strikes_at(health, policy=policy, at_ms=now_ms), 2),
        quota=health.quota,
        successes_in_a_row=health.successes_in_a_row,
        quarantined_times=health.quarantined_times,
        by_hand=health.by_hand,
        failures=tuple(_shown_failure(each) for each in reversed(health.failures)),
    )


def _shown_failure(failure: HeldFailure) -> ShownFailure:
    return ShownFailure(
        job_id=failure.job_id, reason=failure.reason.value, at=instant(failure.at_ms), weight=failure.weight
    )
