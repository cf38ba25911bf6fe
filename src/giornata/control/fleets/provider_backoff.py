"""Leave providers alone that ask for it: no loop asks such a provider before the time that the provider named.

The time is kept with the fleet in the store, so that all loops of all servers respect it. Other fleets are asked as
usual.
"""

from giornata.control.context import Context, GovernedFleet
from giornata.control.notifications.announce import announce
from giornata.control.ports.node_queries.fleet_store import FleetRow
from giornata.control.ports.store import Transaction
from giornata.domain.errors import FleetRefused, FleetUnavailable
from giornata.protocol.events import OperatorEvent
from giornata.protocol.project.admin import ROOT_PROJECT

ProviderError = FleetUnavailable | FleetRefused


def wants_quiet(row: FleetRow | None, now_ms: int) -> bool:
    """Return True when the fleet's provider is not to be asked yet."""
    return row is not None and row.quiet_until_ms is not None and now_ms < row.quiet_until_ms


def is_quiet(ctx: Context, name: str) -> bool:
    """Return True when the provider of the fleet by that name is not to be asked yet."""
    with ctx.store.read() as tx:
        return wants_quiet(tx.fleets.get(name), ctx.clock.now_ms())


def keep_quiet(ctx: Context, governed: GovernedFleet, error: ProviderError) -> None:
    """Write down for how long the provider asked for patience, if it did."""
    retry_after_s = error.retry_after_s if isinstance(error, FleetUnavailable) else None
    if not retry_after_s:
        return
    now_ms = ctx.clock.now_ms()
    until_ms = now_ms + round(retry_after_s * 1000)
    with ctx.store.begin() as tx:
        # It may be the very first answer, and the fleet have no row yet.
        tx.fleets.put(governed.name, driver=governed.driver, at_ms=0, desired=0)
        row = tx.fleets.lock(governed.name)
        if row is not None and (row.quiet_until_ms or 0) < until_ms:
            tx.fleets.update(governed.name, quiet_until_ms=until_ms)


def note_unlisted(ctx: Context, governed: GovernedFleet, error: ProviderError) -> None:
    """Write down that the fleet could not be listed, and why."""
    keep_quiet(ctx, governed, error)
    why = f"{error.code}: {error}"
    with ctx.store.read() as tx:
        row = tx.fleets.get(governed.name)
    if row is None or row.unlisted != why:
        with ctx.store.begin() as tx:
            tx.fleets.put(governed.name, driver=governed.driver, at_ms=0, desired=0)
            tx.fleets.update(governed.name, unlisted=why)
            announce_refusal(tx, ctx, governed.name, error)


def announce_refusal(tx: Transaction, ctx: Context, fleet: str, error: ProviderError) -> None:
    """Tell the operator's webhooks that the provider refused; one that is away will be back by itself."""
    if isinstance(error, FleetRefused):
        data = {"fleet": fleet, "error": str(error)}
        announce(tx, ctx, ROOT_PROJECT, OperatorEvent.FLEET_REFUSED, data, at_ms=ctx.clock.now_ms())
