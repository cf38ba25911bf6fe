"""Compare what is believed of a fleet with what its provider lists: one loop for each fleet.

Only a listing says that an instance is there, runs, or is gone; no answer to a call does. An instance that is listed
although it should have ended is asked to end again. A node that beats on an instance which the provider lists no more
gets no work and is told to leave; it can do no harm in the meantime, for what it writes is fenced by its attempt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from giornata.control.attempts.ending.failed_starts import StartsFound, find_starts, judge_starts
from giornata.control.attempts.ending.lapse import end_leases
from giornata.control.context import Context, GovernedFleet
from giornata.control.fleet_views import AWAKE_BREAK_MS, NodesOn, called
from giornata.control.fleets.examine import SETTLES_WITHIN_MS, Findings, examine
from giornata.control.fleets.note_billing import Heard, HeardPrices, heard_prices, note_billing
from giornata.control.fleets.provider_backoff import is_quiet, note_unlisted
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.control.ports.node_queries.fleet_store import FleetNode, FleetRow, InstanceRow
from giornata.control.ports.store import Transaction
from giornata.domain.errors import FleetRefused, FleetUnavailable, Unavailable
from giornata.domain.jobs.attempt import renew_every_s

LISTED_EVERY_MS = 60_000  # that an unchanged instance is still there is written down this often
ZOMBIE_AFTER_MS = 30_000
ZOMBIES_FOR_MS = 24 * 3_600_000
PRICES_KEPT_MS = 90 * 24 * 3_600_000
LONGEST_TROUBLE = 500
LONGEST_OFFER = 128
SHOWN = (
    *("state", "machine_id", "name", "trouble", "offer", "price_micro_usd_per_hour"),
    *("restarts", "failed_starts"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A listing, and what was believed when it came, of one fleet."""

    fleet: str
    listed: Mapping[str, Instance]
    believed: Mapping[str, InstanceRow]
    prices: HeardPrices | None
    findings: Findings
    nodes: Sequence[FleetNode]
    starts: Mapping[str, StartsFound]
    at_ms: int


def reconcile_fleet(ctx: Context, name: str) -> str:
    """Reconcile the fleet `name` once; return what was found, in words, or nothing. A loop calls it again and again.

    Raises FleetUnavailable and FleetRefused, after it has noted them: no conclusion is drawn from a failed listing.
    """
    governed = ctx.fleets[name]
    if is_quiet(ctx, name):
        return ""
    try:
        listed = {each.id: each for each in governed.fleet.list()}
    except (FleetUnavailable, FleetRefused) as error:
        note_unlisted(ctx, governed, error)
        raise
    prices = heard_prices(governed)
    findings = examine(ctx, governed, tuple(listed.values()))
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        row = _row(tx, governed, listed, at_ms=now_ms)
        believed = {each.id: each for each in tx.fleets.instances(name)}
        nodes = tx.fleets.nodes(name, seen_since_ms=now_ms - ZOMBIES_FOR_MS)
        look = _Look(
            fleet=name,
            listed=listed,
            believed=believed,
            prices=prices,
            findings=findings,
            nodes=nodes,
            starts=find_starts(listed, believed, nodes, at_ms=now_ms),
            at_ms=now_ms,
        )
        judge_starts(tx, ctx, governed, look.starts, at_ms=now_ms)
        now = {each.id: _row_of(each, look, row) for each in listed.values()}
        note_billing(tx, _heard(ctx, look, now, row))
        found = [*_note_listed(tx, look, now), *_note_gone(tx, look, row)]
        found += [*_differences(tx, look, row), *_zombies(tx, look)]
        _note_outdated(tx, look)
        price = row.price_micro_usd_per_hour if prices is None else prices.of_one_more
        _note_price(tx, row, price, at_ms=now_ms)
        listed_now = {"seen_at_ms": now_ms, "price_micro_usd_per_hour": price, "driver": governed.driver}
        tx.fleets.update(name, **listed_now, unlisted="", **_found_out(findings))
        gone = _gone(look) if governed.fleet.limits.gone_has_ended else ()
        orphaned = tx.fleets.leases_on(name, gone) if gone else ()
    if orphaned:
        found.append(f"{end_leases(ctx, orphaned)} leases end with them")
    return "; ".join(found)


def _note_price(tx: Transaction, row: FleetRow, price: int | None, *, at_ms: int) -> None:
    """Note a price that is another one than before. A listing that brings the same one writes nothing."""
    if price is None or price == row.price_micro_usd_per_hour:
        return
    kept_since_ms = at_ms - PRICES_KEPT_MS
    tx.fleets.add_price(row.name, price_micro_usd_per_hour=price, at_ms=at_ms, kept_since_ms=kept_since_ms)


def _gone(look: _Look) -> list[str]:
    return [each for each in look.believed if each not in look.listed]


def _heard(ctx: Context, look: _Look, now: Mapping[str, InstanceRow], row: FleetRow) -> Heard:
    return Heard(
        fleet=look.fleet,
        before=look.believed,
        now=now,
        listed_before_ms=row.seen_at_ms,
        at_ms=look.at_ms,
        told_at_ms=row.told_at_ms,
        beat_ms=round(renew_every_s(ctx.policy.lease_s) * 1000),
        awake_since_ms=ctx.memory.awake_since_ms(at_ms=look.at_ms, break_ms=AWAKE_BREAK_MS),
    )


def _row(tx: Transaction, governed: GovernedFleet, listed: Mapping[str, Instance], *, at_ms: int) -> FleetRow:
    """Return the fleet's row. A fleet that is looked at for the first time is to stay as it is until there is a
    plan.
    """
    staying = [each for each in listed.values() if each.state is not InstanceState.STOPPING]
    tx.fleets.put(governed.name, driver=governed.driver, at_ms=at_ms, desired=len(staying))
    row = tx.fleets.lock(governed.name)
    if row is None:
        raise Unavailable(f"the row of the fleet {governed.name} was deleted just now; try again")
    if row.seen_at_ms == 0:
        tx.fleets.update(governed.name, desired=len(staying))
        row = replace(row, desired=len(staying))
    return row


def _found_out(findings: Findings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if findings.shortage is not None:
        found["shortage"] = findings.shortage
    if findings.outdated is not None:
        found["outdated"] = list(findings.outdated.settings)
    if findings.examined_at_ms is not None:
        found["examined_at_ms"] = findings.examined_at_ms
    return found


def _note_outdated(tx: Transaction, look: _Look) -> None:
    """Note which instances are not as the settings say; one that came again as they are stays."""
    if look.findings.outdated is None:
        return
    old = look.findings.outdated.instances
    rows = tx.fleets.instances(look.fleet)
    for is_old in (True, False):
        changed = [each.id for each in rows if (each.id in old) is is_old and each.outdated is not is_old]
        if changed:
            tx.fleets.update_instances(look.fleet, changed, outdated=is_old)
    _note_renewed(
        tx, look, [each for each in rows if each.renewing and each.id not in old and each.id in look.listed]
    )


def _note_renewed(tx: Transaction, look: _Look, rows: Sequence[InstanceRow]) -> None:
    """Note that these restarted where they are: a node comes up on each, and may have work."""
    if not rows:
        return
    stays = {"leaving_at_ms": None, "leaving_reason": "", "drained_at_ms": None}
    tx.fleets.update_instances(look.fleet, [each.id for each in rows], renewing=False, **stays)
    nodes = NodesOn(look.nodes)
    # The process of before is gone. While nothing is heard of the next one, its place is counted by what it could do.
    before = [node.id for node in map(nodes.of, rows) if node is not None]
    tx.fleets.drain(before, draining=False)


def _note_listed(tx: Transaction, look: _Look, now: Mapping[str, InstanceRow]) -> list[str]:
    found = []
    for key, each in now.items():
        before = look.believed.get(key)
        if before is None:
            found.append(f"{called(each)} is there")
        if before is None or _has_changed(before, each):
            tx.fleets.put_instance(each)
    return found


def _row_of(each: Instance, look: _Look, fleet: FleetRow) -> InstanceRow:
    """Return the row of an instance as it is listed now."""
    before = look.believed.get(each.id)
    runs, starts = each.state is InstanceState.RUNNING, look.starts[each.id].starts
    offer = each.offer or (before.offer if before is not None else "")
    if look.prices is not None:
        price = look.prices.of(offer)
    else:
        price = (fleet.price_micro_usd_per_hour or 0) if before is None else before.price_micro_usd_per_hour
    return InstanceRow(
        fleet=look.fleet,
        id=each.id,
        machine_id=each.machine_id,
        name=each.name,
        state=each.state,
        price_micro_usd_per_hour=price,
        first_listed_at_ms=look.at_ms,
        last_listed_at_ms=look.at_ms,
        running_at_ms=(each.running_since_ms or look.at_ms) if runs else None,
        leaving_at_ms=None,
        leaving_reason="",
        ended_at_ms=None,
        gone_at_ms=None,
        trouble=each.trouble[:LONGEST_TROUBLE],
        restarts=starts.restarts,
        began_at_ms=starts.began_at_ms,
        failed_starts=starts.failed,
        offer=offer[:LONGEST_OFFER],
    )


def _has_changed(before: InstanceRow, now: InstanceRow) -> bool:
    same = all(getattr(before, name) == getattr(now, name) for name in SHOWN)
    return not same or before.last_listed_at_ms + LISTED_EVERY_MS <= now.last_listed_at_ms


def _note_gone(tx: Transaction, look: _Look, row: FleetRow) -> list[str]:
    gone = [look.believed[each] for each in sorted(_gone(look))]
    if gone:
        tx.fleets.update_instances(look.fleet, [each.id for each in gone], gone_at_ms=look.at_ms)
    # A node that is told to leave may be quicker than its provider is asked: nobody is to come in its place, unless
    # it left to be renewed.
    left = len(
        [each for each in gone if each.leaving_at_ms is not None and each.ended_at_ms is None and not each.renewing]
    )
    if left:
        tx.fleets.update(look.fleet, desired=max(0, row.desired - left), told=None, changed_at_ms=look.at_ms)
    return [f"{called(each)} is gone" for each in gone]


def _differences(tx: Transaction, look: _Look, row: FleetRow) -> list[str]:
    """Have the next turn of scaling ask again, where the provider did not do in good time what it was asked for."""
    long_ago_ms = look.at_ms - SETTLES_WITHIN_MS
    staying = [each for each in look.listed.values() if each.state is not InstanceState.STOPPING]
    orphans = [
        called(each)
        for each in staying
        if (before := look.believed.get(each.id)) is not None and (before.ended_at_ms or look.at_ms) < long_ago_ms
    ]
    found = [f"{each} was asked to end and is still there" for each in orphans]
    if len(staying) != row.desired and (row.changed_at_ms or 0) < long_ago_ms:
        found.append(f"{len(staying)} are listed, {row.desired} were asked for")
    if found and row.told is not None:
        tx.fleets.update(look.fleet, told=None)
        return found
    return []


def _zombies(tx: Transaction, look: _Look) -> list[str]:
    gone = {each.id: each for each in tx.fleets.gone_since(look.fleet, since_ms=look.at_ms - ZOMBIES_FOR_MS)}
    zombies = [
        node
        for node in look.nodes
        if node.instance_id in gone
        and not node.draining
        and node.last_seen_at_ms > (gone[node.instance_id].gone_at_ms or 0) + ZOMBIE_AFTER_MS
    ]
    if zombies:
        tx.fleets.drain([each.id for each in zombies])
    return [f"{each.id} beats on {each.instance_id}, which is gone: it is told to leave" for each in zombies]


def unconfigured(rows: Sequence[FleetRow], configured: Mapping[str, GovernedFleet]) -> list[FleetRow]:
    """Return the fleets that were looked after once and are no longer named in the settings."""
    return [replace(row, trouble=row.trouble or NOT_CONFIGURED) for row in rows if row.name not in configured]


NOT_CONFIGURED = "not configured any more: nobody looks after what its provider still has for it"
