"""Operator actions: quarantine and release machines, pause, resume and scale fleets.

A fleet's pause and limits are kept in the store: they hold for every server of the database and survive a restart.
The scaling loop acts on them at its next turn.
"""

from giornata.control.access.permissions import require_root_admin
from giornata.control.attempts.ending.judge_machines import put_judged
from giornata.control.attempts.ending.lift_bans import lift
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context, GovernedFleet
from giornata.control.fleets.read_fleets import read_fleet
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.ports.node_queries.fleet_store import FleetRow
from giornata.control.ports.store import Transaction
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict, Fault, InvalidInput, NotFound, Unavailable
from giornata.domain.fleets.fleet_plan import ScalingLimits, limited
from giornata.domain.jobs.job import JobState
from giornata.domain.machines.health import Failure as HeldFailure
from giornata.domain.machines.health import (
    MachineHealth,
    MachineState,
    cool_down_ends_ms,
    let_go,
    newcomer,
    shut_out,
    strikes_at,
)
from giornata.protocol.node.fleets import Fleet, Machine, MachinePage, ScaleFleet
from giornata.protocol.node.fleets import HeldFailure as ShownFailure


def list_machines(
    ctx: Context, caller: Caller, *, state: MachineState | None, cursor: str | None, limit: int
) -> MachinePage:
    """Return the health of machines, one line for each kind of job; latest change of state first. Raises Forbidden,
    InvalidInput.

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
    """Give the machine no more work, of any kind that it does or did, until it is let go. Its present work goes on
    to its end.

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
            put_judged(tx, ctx, held, shut_out(held, reason=reason, at_ms=now_ms), at_ms=now_ms)
        record_call(
            tx, caller, AuditVerb.MACHINE_QUARANTINE, machine_id, at_ms=now_ms, changes={"kinds": sorted(kinds)}
        )
        return _of_machine(ctx, tx, machine_id, now_ms)


def release_machine(ctx: Context, caller: Caller, machine_id: str) -> MachinePage:
    """Clear all that is held against the machine; queued jobs that it failed may go back to it. May be repeated.

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
        record_call(tx, caller, AuditVerb.MACHINE_RELEASE, machine_id, at_ms=now_ms, changes={"bans_lifted": lifted})
        return _of_machine(ctx, tx, machine_id, now_ms)


def _lift_bans(tx: Transaction, machine_id: str, *, at_ms: int) -> int:
    """Lift the bans of queued jobs from the machine; return their number. Jobs are locked before machines."""
    kinds = tx.machines.kinds_of(machine_id)
    job_ids = tx.bans.on_machine(machine_id, kinds) if kinds else ()
    for job_id in job_ids:
        job = tx.jobs.lock(job_id)
        if job is not None and job.state is JobState.QUEUED:
            lift(tx, job, [machine_id], because="an operator released the machine", at_ms=at_ms)
    return len(job_ids)


def _of_machine(ctx: Context, tx: Transaction, machine_id: str, now_ms: int) -> MachinePage:
    return MachinePage(items=tuple(_shown(ctx, each, now_ms) for each in tx.machines.of_machine(machine_id)))


def _shown(ctx: Context, health: MachineHealth, now_ms: int) -> Machine:
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


def pause_fleet(ctx: Context, caller: Caller, name: str) -> Fleet:
    """Have no nodes of the fleet until it is resumed. May be repeated.

    A node at work writes a checkpoint and gives its job back first. Raises Forbidden, NotFound, and Conflict for a
    fleet whose nodes come by themselves.
    """
    governed = _governed(ctx, caller, name)
    with ctx.store.begin() as tx:
        row = _row(tx, governed)
        if row.paused_at_ms is None:
            now_ms = ctx.clock.now_ms()
            tx.fleets.update(name, paused_at_ms=now_ms)
            record_call(tx, caller, AuditVerb.FLEET_PAUSE, name, at_ms=now_ms)
    return read_fleet(ctx, caller, name)


def resume_fleet(ctx: Context, caller: Caller, name: str) -> Fleet:
    """Let a paused fleet follow the queue again. May be repeated. Raises as `pause_fleet`."""
    governed = _governed(ctx, caller, name)
    with ctx.store.begin() as tx:
        if _row(tx, governed).paused_at_ms is not None:
            tx.fleets.update(name, paused_at_ms=None)
            record_call(tx, caller, AuditVerb.FLEET_RESUME, name, at_ms=ctx.clock.now_ms())
    return read_fleet(ctx, caller, name)


def scale_by_hand(ctx: Context, caller: Caller, name: str, request: ScaleFleet) -> Fleet:
    """Set limits in place of those of the settings, or go back to these. May be repeated.

    Raises as `pause_fleet`, and InvalidInput for more nodes at least than at most.
    """
    governed = _governed(ctx, caller, name)
    with ctx.store.begin() as tx:
        row = _row(tx, governed)
        changes = {field: getattr(request, field) for field in request.model_fields_set}
        limits = ScalingLimits(**{**row.limits, **changes})
        _check(governed, limits)
        if limits.set_ones() != row.limits:
            tx.fleets.update(name, limits=limits.set_ones())
            record_call(
                tx,
                caller,
                AuditVerb.FLEET_SCALE,
                name,
                at_ms=ctx.clock.now_ms(),
                changes={"limits": limits.set_ones()},
            )
    return read_fleet(ctx, caller, name)


def _governed(ctx: Context, caller: Caller, name: str) -> GovernedFleet:
    require_root_admin(caller)
    governed = ctx.fleets.get(name)
    if governed is None:
        raise NotFound(f"there is no fleet {name} in the settings")
    if not governed.fleet.limits.gives_nodes:
        raise Conflict(
            f"{name} cannot be scaled: with the driver {governed.driver} machines join by "
            "themselves; drain a node with giornata nodes drain"
        )
    return governed


def _row(tx: Transaction, governed: GovernedFleet) -> FleetRow:
    """Return the fleet's row, held; it is made where the fleet was never listed."""
    tx.fleets.put(governed.name, driver=governed.driver, at_ms=0, desired=0)
    row = tx.fleets.lock(governed.name)
    if row is None:
        raise Unavailable(f"the row of the fleet {governed.name} was deleted just now; try again")
    return row


def _check(governed: GovernedFleet, limits: ScalingLimits) -> None:
    merged = limited(governed.scaling, limits, paused=False)
    if merged.min_nodes > merged.max_nodes:
        where = "max_nodes" if limits.max_nodes is not None else "min_nodes"
        message = f"{merged.min_nodes} are the fewest nodes, and {merged.max_nodes} the most"
        hint = "set both; what is not set is as the settings say"
        raise InvalidInput([Fault(where=where, message=message, hint=hint)])
