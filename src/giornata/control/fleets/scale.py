"""Scale each fleet to the nodes that the queue needs, and that the settings allow: one loop for each fleet.

The decision is written down before the provider is asked, and what it was surely asked for afterwards. Whatever is
lost in between (a reply, this process) is mended by the next turn, which asks again: every call may be repeated.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from giornata.control.context import Context, GovernedFleet
from giornata.control.fleet_views import NodesOn, called, reallocations_per_minute, scaling_of, view_of
from giornata.control.fleets.examine import SETTLES_WITHIN_MS
from giornata.control.fleets.provider_backoff import ProviderError, announce_refusal, is_quiet, keep_quiet
from giornata.control.fleets.roll import roll_on
from giornata.control.ports.fleet import InstanceState
from giornata.control.ports.node_queries.fleet_store import FleetRow
from giornata.control.ports.store import Transaction
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone
from giornata.domain.fleets.fleet_plan import FleetView, Plan, Step
from giornata.domain.fleets.scaling import plan_fleet

# That there is still work for a fleet is written down this often.
NEEDED_EVERY_MS = 10_000
HEARD_WITHIN_MS = 3_600_000


def scale_fleet(ctx: Context, name: str) -> str:
    """Scale the fleet `name` once; return what was done, in words, or nothing. A loop calls it again and again.

    Raises FleetUnavailable and FleetRefused, after it has noted them; the loop comes back later.
    """
    governed = ctx.fleets[name]
    if not governed.fleet.limits.gives_nodes or is_quiet(ctx, name):
        return ""  # its nodes come and go by themselves, or nothing can be asked for
    decided = _decide(ctx, governed)
    try:
        _drain(ctx, governed, apart_from={step.instance_id for step in decided.reallocate} if decided else set())
        asked = _ask_provider(ctx, governed)
        moved = [_reallocate(ctx, governed, step) for step in decided.reallocate] if decided else []
        moved += _end_who_was_kept(ctx, governed)
        rolled = roll_on(ctx, governed)
    except (FleetUnavailable, FleetRefused) as error:
        keep_quiet(ctx, governed, error)
        _note_trouble(ctx, name, error)
        raise
    _note_trouble(ctx, name, None)
    return "; ".join(filter(None, [asked, *moved, rolled]))


def _decide(ctx: Context, governed: GovernedFleet) -> Plan | None:
    """Return the plan, written down; None while the provider has not been listed yet."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        row, view = tx.fleets.get(governed.name), view_of(tx, ctx, governed.name, at_ms=now_ms)
    if row is None or view is None:
        return None
    plan = plan_fleet(view, scaling_of(governed, row), now_ms)
    if not _is_news(row, view, plan, now_ms):
        return plan
    with ctx.store.begin() as tx:
        # Seen again while nobody else writes: a node that was idle a moment ago may have a job by now.
        row, view = tx.fleets.lock(governed.name), view_of(tx, ctx, governed.name, at_ms=now_ms)
        if row is None or view is None:
            return None
        plan = plan_fleet(view, scaling_of(governed, row), now_ms)
        _write(tx, row, view, plan, at_ms=now_ms)
    return plan


def _is_news(row: FleetRow, view: FleetView, plan: Plan, now_ms: int) -> bool:
    stale = plan.needed and (row.needed_at_ms or 0) + NEEDED_EVERY_MS <= now_ms
    stale = stale or (plan.awaited and (row.awaited_at_ms or 0) + NEEDED_EVERY_MS <= now_ms)
    acts = plan.desired != view.asked or plan.leaving or plan.ending or plan.reallocate
    return bool(acts or stale or row.plan != in_words(plan))


def in_words(plan: Plan) -> Mapping[str, Any]:
    """Return the plan as it is kept and shown."""
    kept = asdict(plan)
    return {
        "jobs": plan.jobs,
        "desired": plan.desired,
        "reasons": list(plan.reasons),
        "stopped": plan.stopped,
        **{name: [each["instance_id"] for each in kept[name]] for name in ("leaving", "reallocate")},
        "ending": list(plan.ending),
    }


def _write(tx: Transaction, row: FleetRow, view: FleetView, plan: Plan, *, at_ms: int) -> None:
    columns: dict[str, Any] = {"plan": in_words(plan), "desired": plan.desired}
    if plan.needed:
        columns["needed_at_ms"] = at_ms
    if plan.awaited:
        columns["awaited_at_ms"] = at_ms
    if plan.desired != view.asked or plan.leaving or plan.reallocate:
        columns["changed_at_ms"] = at_ms
    if plan.desired != row.told or plan.ending:
        columns["told"] = None
    tx.fleets.update(row.name, **columns)
    _mark_leaving(tx, row.name, (*plan.leaving, *plan.reallocate), at_ms=at_ms)
    if plan.ending:
        tx.fleets.update_instances(row.name, plan.ending, ended_at_ms=at_ms)
    machines = {each.id: each.machine_id for each in view.instances}
    for step in plan.reallocate:
        tx.fleets.add_reallocation(
            row.name,
            step.instance_id,
            machine_id=machines.get(step.instance_id),
            reason=step.reason,
            at_ms=at_ms,
        )


def _mark_leaving(tx: Transaction, fleet: str, steps: Sequence[Step], *, at_ms: int) -> None:
    for step in steps:
        leaves = {"leaving_at_ms": at_ms, "leaving_reason": step.reason, "renewing": False}
        tx.fleets.update_instances(fleet, [step.instance_id], **leaves)
    if steps:
        nodes = NodesOn(tx.fleets.nodes(fleet, seen_since_ms=at_ms - HEARD_WITHIN_MS))
        told = {step.instance_id for step in steps}
        found = (nodes.of(each) for each in tx.fleets.instances(fleet) if each.id in told)
        tx.fleets.drain([node.id for node in found if node is not None])


def _drain(ctx: Context, governed: GovernedFleet, *, apart_from: Collection[str]) -> None:
    """Tell the provider which instances leave, so that those go and no others, whenever the number falls."""
    with ctx.store.read() as tx:
        rows = tx.fleets.instances(governed.name)
    for each in rows:
        leaves = each.leaving_at_ms is not None and each.ended_at_ms is None and not each.renewing
        if not leaves or each.drained_at_ms is not None or each.id in apart_from:
            continue
        # One that is gone, or that its provider can mark in no way, needs none: `leaving` names it as well.
        with suppress(InstanceGone, FleetRefused):
            governed.fleet.drain(each.id)
        with ctx.store.begin() as tx:
            tx.fleets.update_instances(governed.name, [each.id], drained_at_ms=ctx.clock.now_ms())


def _ask_provider(ctx: Context, governed: GovernedFleet) -> str:
    """Ask for the number that is written down, unless that has been asked for."""
    with ctx.store.read() as tx:
        row = tx.fleets.get(governed.name)
        leaving = [each for each in tx.fleets.instances(governed.name) if each.ended_at_ms is not None]
    if row is None or row.seen_at_ms == 0 or row.told == row.desired:
        return ""
    governed.fleet.desired(row.desired, leaving=[each.id for each in leaving])
    with ctx.store.begin() as tx:
        now = tx.fleets.lock(governed.name)
        if now is not None and now.desired == row.desired:
            tx.fleets.update(governed.name, told=row.desired, told_at_ms=ctx.clock.now_ms())
    return f"{row.desired} nodes" + (f", without {', '.join(map(called, leaving))}" if leaving else "")


def _end_who_was_kept(ctx: Context, governed: GovernedFleet) -> list[str]:
    """End by name the instances that were asked to end and are listed still, although no more are there than were
    asked for.

    Their provider let others go instead. Such an instance gets no work, and none comes in its place while it is
    there.
    """
    name, now_ms = governed.name, ctx.clock.now_ms()
    with ctx.store.read() as tx:
        row, listed = tx.fleets.get(name), tx.fleets.instances(name)
        recent = tx.fleets.reallocations(name, since_ms=now_ms - 60_000)
    staying = [each for each in listed if each.state != InstanceState.STOPPING]
    if row is None or row.told != row.desired or len(staying) > row.desired:
        return []
    long_ago_ms = row.seen_at_ms - SETTLES_WITHIN_MS
    kept = [each for each in staying if each.ended_at_ms is not None and each.ended_at_ms < long_ago_ms]
    said = []
    for each in kept[: max(0, reallocations_per_minute(governed) - recent)]:
        step = Step(instance_id=each.id, reason="it was asked to end, and its provider let another go instead")
        with ctx.store.begin() as tx:
            tx.fleets.add_reallocation(name, each.id, machine_id=each.machine_id, reason=step.reason, at_ms=now_ms)
        said.append(_reallocate(ctx, governed, step))
    return said


def _reallocate(ctx: Context, governed: GovernedFleet, step: Step) -> str:
    with suppress(InstanceGone):  # what was wanted of it has happened
        governed.fleet.reallocate(step.instance_id, reason=step.reason)
    with ctx.store.begin() as tx:
        tx.fleets.update_instances(governed.name, [step.instance_id], ended_at_ms=ctx.clock.now_ms())
    return f"{step.instance_id} is replaced: {step.reason}"


def _note_trouble(ctx: Context, name: str, error: ProviderError | None) -> None:
    trouble = "" if error is None else f"{error.code}: {error}"
    with ctx.store.read() as tx:
        row = tx.fleets.get(name)
    if row is not None and row.trouble != trouble:
        with ctx.store.begin() as tx:
            tx.fleets.update(name, trouble=trouble)
            if error is not None:
                announce_refusal(tx, ctx, name, error)
