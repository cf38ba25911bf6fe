"""What an operator wants of a fleet while the server runs: a pause, and other limits than those of the settings.

Both are kept in the store, so that they hold for every server of the database and survive a restart. The loop of
scaling acts on them at its next turn.
"""

from giornata.control.context import Caller, Context
from giornata.control.governed_fleet import GovernedFleet
from giornata.control.permissions import require_root_admin
from giornata.control.ports.fleet_store import FleetRow
from giornata.control.ports.store import Transaction
from giornata.control.read_fleets import read_fleet
from giornata.domain.errors import Conflict, Fault, InvalidInput, NotFound, Unavailable
from giornata.domain.fleet_plan import FleetLimits, limited
from giornata.protocol.fleets import Fleet, ScaleFleet


def pause_fleet(ctx: Context, caller: Caller, name: str) -> Fleet:
    """Have no nodes of the fleet until it is resumed. May be repeated.

    A node at work writes a checkpoint and gives its job back first. Raises Forbidden, NotFound, and Conflict for a
    fleet whose nodes come by themselves.
    """
    governed = _governed(ctx, caller, name)
    with ctx.store.begin() as tx:
        row = _row(tx, governed)
        if row.paused_at_ms is None:
            tx.fleets.update(name, paused_at_ms=ctx.clock.now_ms())
    return read_fleet(ctx, caller, name)


def resume_fleet(ctx: Context, caller: Caller, name: str) -> Fleet:
    """Let a paused fleet follow the queue again. May be repeated. Raises as `pause_fleet`."""
    governed = _governed(ctx, caller, name)
    with ctx.store.begin() as tx:
        if _row(tx, governed).paused_at_ms is not None:
            tx.fleets.update(name, paused_at_ms=None)
    return read_fleet(ctx, caller, name)


def scale_by_hand(ctx: Context, caller: Caller, name: str, request: ScaleFleet) -> Fleet:
    """Set limits in place of those of the settings, or go back to these. May be repeated.

    Raises as `pause_fleet`, and InvalidInput for more nodes at least than at most.
    """
    governed = _governed(ctx, caller, name)
    with ctx.store.begin() as tx:
        row = _row(tx, governed)
        changes = {field: getattr(request, field) for field in request.model_fields_set}
        limits = FleetLimits(**{**row.limits, **changes})
        _check(governed, limits)
        if limits.set_ones() != row.limits:
            tx.fleets.update(name, limits=limits.set_ones())
    return read_fleet(ctx, caller, name)


def _governed(ctx: Context, caller: Caller, name: str) -> GovernedFleet:
    require_root_admin(caller)
    governed = ctx.fleets.get(name)
    if governed is None:
        raise NotFound(f"there is no fleet {name} in the settings")
    if not governed.fleet.limits.gives_nodes:
        raise Conflict(
            f"{name} gives no nodes that could be asked for: with the driver {governed.driver} machines join by "
            "themselves; drain a node with giornata nodes drain"
        )
    return governed


def _row(tx: Transaction, governed: GovernedFleet) -> FleetRow:
    """The fleet's row, held; made where the fleet was never listed."""
    tx.fleets.put(governed.name, driver=governed.driver, at_ms=0, desired=0)
    row = tx.fleets.lock(governed.name)
    if row is None:
        raise Unavailable(f"the row of the fleet {governed.name} was deleted just now")
    return row


def _check(governed: GovernedFleet, limits: FleetLimits) -> None:
    merged = limited(governed.scaling, limits, paused=False)
    if merged.min_nodes > merged.max_nodes:
        where = "max_nodes" if limits.max_nodes is not None else "min_nodes"
        message = f"{merged.min_nodes} are the fewest nodes, and {merged.max_nodes} the most"
        hint = "set both; what is not set is as the settings say"
        raise InvalidInput([Fault(where=where, message=message, hint=hint)])
