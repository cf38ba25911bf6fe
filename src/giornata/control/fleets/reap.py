"""Drain and replace quarantined machines whose provider can replace them; all others get another chance after a
while, on probation.

A machine that works for another kind of job is given time to hand its work back. The record of a machine stays
when it is replaced: should it come back after the provider's exclusion, it is on probation. What an operator
quarantined is the operator's affair.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from giornata.control.context import Context, GovernedFleet
from giornata.control.fleet_views import share_left
from giornata.control.fleets.provider_backoff import is_quiet, keep_quiet
from giornata.control.ports.fleet import Instance
from giornata.control.ports.node_queries.machine_store import LastNode, Reallocation
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone
from giornata.domain.machines.health import MachineHealth, MachineState, common_cause, cool_down_ends_ms, cooled_down

log = logging.getLogger("giornata.reap")

AT_MOST = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """The results of one turn; false when the turn did nothing."""

    reallocated: int = 0
    draining: int = 0
    given_another_chance: int = 0

    def __bool__(self) -> bool:
        return bool(self.reallocated or self.draining or self.given_another_chance)


def reap(ctx: Context) -> Reaped:
    """Go through the quarantined machines. A loop calls it again and again; a fleet that cannot be asked just now
    keeps its machines until a later turn, and delays no other fleet."""
    with ctx.store.only_here("reap") as ours:
        if not ours:
            return Reaped()
        since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
        with ctx.store.read() as tx:
            quarantined = tx.machines.in_state(MachineState.QUARANTINED, limit=AT_MOST)
            there = {each.machine_id for each in quarantined}
            last_nodes = tx.machines.last_nodes(there, seen_since_ms=since_ms) if there else ()
        chances = sum(_another_chance(ctx, each) for each in quarantined)
        reallocated = draining = 0
        for fleet, suspects in _by_fleet(ctx, last_nodes, quarantined).items():
            done = _reap_fleet(ctx, ctx.fleets[fleet], suspects)
            reallocated, draining = reallocated + done.reallocated, draining + done.draining
        return Reaped(reallocated=reallocated, draining=draining, given_another_chance=chances)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    """A machine to be replaced, and its provider's instance."""

    last_node: LastNode
    instance: Instance
    reason: str


def _another_chance(ctx: Context, health: MachineHealth) -> bool:
    now_ms, policy = ctx.clock.now_ms(), ctx.policy.health
    ends_ms = cool_down_ends_ms(health, policy=policy)
    if ends_ms is None or now_ms < ends_ms:
        return False
    with ctx.store.begin() as tx:
        for held in tx.machines.lock_each([(health.machine_id, health.kind)]).values():
            tx.machines.put(cooled_down(held, policy=policy, at_ms=now_ms))
    return True


def _by_fleet(
    ctx: Context, last_nodes: Sequence[LastNode], quarantined: Sequence[MachineHealth]
) -> Mapping[str, Sequence[tuple[LastNode, str]]]:
    """Return nodes of governed fleets whose machine is quarantined for a kind of the fleet, with the reason."""
    found: dict[str, list[tuple[LastNode, str]]] = defaultdict(list)
    for last_node in last_nodes:
        governed = ctx.fleets.get(last_node.fleet)
        if governed is None:
            continue
        here = [each for each in quarantined if each.machine_id == last_node.machine_id and not each.by_hand]
        of_it = [each for each in here if each.kind in governed.kinds]
        if of_it:
            reason = "; ".join(f"quarantined for {each.kind}: {each.reason}" for each in of_it)
            found[last_node.fleet].append((last_node, reason))
    return found


def _reap_fleet(ctx: Context, governed: GovernedFleet, there: Sequence[tuple[LastNode, str]]) -> Reaped:
    if is_quiet(ctx, governed.name):
        return Reaped()
    try:
        listed = governed.fleet.list()
        suspected = [last_node.machine_id for last_node, _ in there]
        if common_cause(
            failing=suspected, fine=_others(listed, there), jobs=len(suspected), policy=ctx.policy.health
        ):
            log.warning("fleet %s: %d of its machines are quarantined; none is replaced", governed.name, len(there))
            return Reaped()
        suspects = _suspects(ctx, governed, there, listed)
        return _replace(ctx, governed, suspects, nodes=len(listed))
    except (FleetUnavailable, FleetRefused) as error:
        keep_quiet(ctx, governed, error)
        # A machine that is not replaced gets another chance with time.
        log.info("fleet %s replaces no machine now: %s", governed.name, error)
        return Reaped()


def _others(listed: Sequence[Instance], there: Sequence[tuple[LastNode, str]]) -> list[str]:
    ours = {last_node.instance_id for last_node, _ in there} | {last_node.machine_id for last_node, _ in there}
    return [each.id for each in listed if each.id not in ours and each.machine_id not in ours]


def _suspects(
    ctx: Context, governed: GovernedFleet, there: Sequence[tuple[LastNode, str]], listed: Sequence[Instance]
) -> list[_Suspect]:
    """Return the machines that the provider lists, by the id that the node says, or by the machine's; those that
    leave already first.
    """
    by_id = {each.id: each for each in listed}
    by_machine = {each.machine_id: each for each in listed if each.machine_id is not None}
    found = []
    for last_node, reason in there:
        instance = by_id.get(last_node.instance_id or "") or by_machine.get(last_node.machine_id)
        if instance is not None and not last_node.asked:
            found.append(_Suspect(last_node=last_node, instance=instance, reason=reason))
        elif instance is None and last_node.leaving_at_ms is not None and not last_node.asked:
            # It was told to go, and went: perhaps the reply to our asking was lost.
            _note(ctx, governed, last_node, last_node.instance_id or "", reason=reason)
    return sorted(found, key=lambda each: (each.last_node.leaving_at_ms is None, each.last_node.machine_id))


def _replace(ctx: Context, governed: GovernedFleet, suspects: Sequence[_Suspect], *, nodes: int) -> Reaped:
    reallocated = draining = 0
    with ctx.store.read() as tx:
        room = share_left(tx, ctx, governed, nodes=nodes, at_ms=ctx.clock.now_ms())
    for each in suspects[:room]:
        now_ms = ctx.clock.now_ms()
        drained_ms = each.last_node.leaving_at_ms
        if drained_ms is None:
            _drain(ctx, governed, each, now_ms=now_ms)
            drained_ms, draining = now_ms, draining + 1
        waited = now_ms - drained_ms >= ctx.policy.reap.drain_s * 1000
        if waited or not each.last_node.live_attempts:
            reallocated += _reallocate(ctx, governed, each)
    return Reaped(reallocated=reallocated, draining=draining)


def _drain(ctx: Context, governed: GovernedFleet, suspect: _Suspect, *, now_ms: int) -> None:
    with ctx.store.begin() as tx:
        tx.machines.leave(suspect.last_node, governed.name, suspect.instance, reason=suspect.reason, at_ms=now_ms)
    try:
        governed.fleet.drain(suspect.instance.id)
    except InstanceGone:
        log.info("fleet %s: %s was to be drained and is gone", governed.name, suspect.instance.id)


def _reallocate(ctx: Context, governed: GovernedFleet, suspect: _Suspect) -> bool:
    try:
        governed.fleet.reallocate(suspect.instance.id, reason=suspect.reason[:1000])
    except InstanceGone:
        # One answer is no proof: it is gone when it is listed no more, otherwise the next turn asks again.
        if any(each.id == suspect.instance.id for each in governed.fleet.list()):
            log.warning("fleet %s lists %s and says that it is gone", governed.name, suspect.instance.id)
            return False
    _note(ctx, governed, suspect.last_node, suspect.instance.id, reason=suspect.reason)
    with ctx.store.begin() as tx:
        # Another comes in its place: it is not one that left by itself, for which nobody is to come.
        tx.fleets.update_instances(governed.name, [suspect.instance.id], ended_at_ms=ctx.clock.now_ms())
    log.info("fleet %s: %s is replaced: %s", governed.name, suspect.instance.id, suspect.reason)
    return True


def _note(ctx: Context, governed: GovernedFleet, last_node: LastNode, instance_id: str, *, reason: str) -> None:
    with ctx.store.begin() as tx:
        tx.machines.add_reallocation(
            Reallocation(
                fleet=governed.name,
                instance_id=instance_id,
                machine_id=last_node.machine_id,
                reason=reason,
                at_ms=ctx.clock.now_ms(),
            )
        )
