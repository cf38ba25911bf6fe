"""Bring the instances of a fleet to what the settings say, without losing work, because an operator asked for it.

A node whose turn it is gets no more work: it writes a checkpoint, gives its job back, and only then its provider is
asked to renew it. No node is forced to leave: one that does not let go is waited for.
"""

from giornata.control.access.permissions import require_root_admin
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context, GovernedFleet
from giornata.control.fleet_views import NodesOn
from giornata.control.fleets.read_fleets import read_fleet
from giornata.control.ports.fleet import Renews
from giornata.control.ports.node_queries.fleet_store import FleetRow, InstanceRow
from giornata.control.ports.store import Transaction
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict, NotFound
from giornata.domain.fleets.replacement import RolledInstance, RollStep, roll_step
from giornata.protocol.node.fleets import Fleet

HEARD_WITHIN_MS = 3_600_000


def ask_to_roll(ctx: Context, caller: Caller, name: str) -> Fleet:
    """Have the fleet rolled from now on; asking twice changes nothing. The loop of scaling does it.

    Raises Forbidden, NotFound, and Conflict for a fleet that has nothing to roll, or that has not been listed yet.
    """
    require_root_admin(caller)
    governed = ctx.fleets.get(name)
    if governed is None:
        raise NotFound(f"there is no fleet {name} in the settings")
    if not isinstance(governed.fleet, Renews):
        raise Conflict(
            f"{name} cannot be rolled: with the driver {governed.driver} a node keeps the settings that it was "
            "started with; restart the node"
        )
    with ctx.store.begin() as tx:
        row = tx.fleets.lock(name)
        if row is None or row.seen_at_ms == 0:
            raise Conflict(
                f"the instances of {name} have not been listed yet; try again when giornata fleets shows them"
            )
        if row.roll_since_ms is None:
            now_ms = ctx.clock.now_ms()
            tx.fleets.update(name, roll_since_ms=now_ms)
            record_call(tx, caller, AuditVerb.FLEET_ROLL, name, at_ms=now_ms)
    return read_fleet(ctx, caller, name)


def roll_on(ctx: Context, governed: GovernedFleet) -> str:
    """Do one turn of rolling, if it was asked for; return what was done, in words. Raises FleetUnavailable and
    FleetRefused.
    """
    fleet, name = governed.fleet, governed.name
    with ctx.store.read() as tx:
        row = tx.fleets.get(name)
    if row is None or not _may_begin(row) or not isinstance(fleet, Renews):
        return ""
    with ctx.store.begin() as tx:
        now_ms = ctx.clock.now_ms()
        row = tx.fleets.lock(name)
        if row is None or not _may_begin(row):
            return ""
        step = _step(tx, name, one_by_one=fleet.one_by_one, at_ms=now_ms)
        _tell(tx, row, step, at_ms=now_ms)
        if step.over and not row.outdated:
            tx.fleets.update(name, roll_since_ms=None)
            return "everything is as the settings say"
        next_only = step.over and _may_disturb(tx, name, fleet, at_ms=now_ms)
        if next_only:  # afterwards the provider has to be looked at again
            tx.fleets.update(name, examined_at_ms=None)
    if step.renew or next_only:
        fleet.renew(step.renew)
    if next_only:
        return f"what comes from now on is as the settings say: {', '.join(row.outdated)}"
    return f"{', '.join(step.renew)}: renewed" if step.renew else ""


def _may_begin(row: FleetRow) -> bool:
    """Return True when a roll was asked for, and the provider has been examined since."""
    return row.roll_since_ms is not None and (row.examined_at_ms or 0) > row.roll_since_ms


def _may_disturb(tx: Transaction, name: str, fleet: Renews, *, at_ms: int) -> bool:
    """Return True when no node would lose work if the provider restarted all of its instances."""
    return fleet.one_by_one or not any(
        each.live for each in tx.fleets.nodes(name, seen_since_ms=at_ms - HEARD_WITHIN_MS)
    )


def _step(tx: Transaction, name: str, *, one_by_one: bool, at_ms: int) -> RollStep:
    there = tx.fleets.nodes(name, seen_since_ms=at_ms - HEARD_WITHIN_MS)
    nodes = NodesOn(there)
    # Where all restart together, a node at work counts although its instance has not been listed yet.
    any_busy = not one_by_one and any(each.live for each in there)

    def rolled(row: InstanceRow) -> RolledInstance:
        node = nodes.of(row)
        busy = any_busy or (node is not None and node.live > 0)
        return RolledInstance(id=row.id, outdated=row.outdated, told=row.renewing, busy=busy)

    staying = [each for each in tx.fleets.instances(name) if each.leaving_at_ms is None or each.renewing]
    return roll_step([rolled(each) for each in staying], one_by_one=one_by_one)


def _tell(tx: Transaction, row: FleetRow, step: RollStep, *, at_ms: int) -> None:
    if not step.tell:
        return
    reason = f"it is renewed: {', '.join(row.outdated) or 'its settings'} changed"
    marks = {"leaving_at_ms": at_ms, "leaving_reason": reason, "renewing": True}
    tx.fleets.update_instances(row.name, step.tell, **marks)
    nodes = NodesOn(tx.fleets.nodes(row.name, seen_since_ms=at_ms - HEARD_WITHIN_MS))
    found = (nodes.of(each) for each in tx.fleets.instances(row.name) if each.id in step.tell)
    tx.fleets.drain([node.id for node in found if node is not None])
