"""Nodes, and for the operator fleets and the health of machines; prices over time as a line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Response

from giornata.control.access.permissions import require_root_admin
from giornata.control.fleets import operator_actions
from giornata.control.fleets.nodes import drain_node, list_nodes, undrain_node
from giornata.control.fleets.read_fleets import read_fleet
from giornata.control.loops import read_loops
from giornata.control.timestamps import instant
from giornata.dashboard.forms import asked_of, whole_number
from giornata.dashboard.rendering import render
from giornata.dashboard.shared_parts import LIST_KEPT_MS
from giornata.dashboard.visit import Visit, action, page, part, see
from giornata.domain.errors import Conflict, FleetRefused
from giornata.domain.machines.health import MachineState
from giornata.protocol.node.fleets import Fleet, FleetPrice, QuarantineMachine, ScaleFleet

LINE_WIDTH, LINE_TOP, LINE_HEIGHT = 1000.0, 8.0, 64.0
"""Of the line of prices, in the units of the drawing."""
PER_PAGE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLine:
    """A line from the oldest price until now. The lowest point of the drawing is the least price."""

    path: str
    began_at: datetime
    least_micro_usd: int
    most_micro_usd: int
    changes: int


def draw_prices(changes: Sequence[FleetPrice], *, now: datetime) -> PriceLine | None:
    """Return the line of these prices, the newest first; None for fewer than two."""
    if len(changes) < 2:
        return None
    prices = [each.micro_usd_per_hour for each in changes]
    least, most, began_at = min(prices), max(prices), changes[-1].at
    whole_s = max((now - began_at).total_seconds(), 1.0)

    def x(at: datetime) -> str:
        return f"{min(LINE_WIDTH, LINE_WIDTH * (at - began_at).total_seconds() / whole_s):.1f}"

    def y(price: int) -> str:
        return f"{LINE_TOP + LINE_HEIGHT * (most - price) / max(most - least, 1):.1f}"

    oldest, *later = reversed(changes)
    steps = "".join(f"H{x(each.at)}V{y(each.micro_usd_per_hour)}" for each in later)
    path = f"M0 {y(oldest.micro_usd_per_hour)}{steps}H{LINE_WIDTH:.0f}"
    return PriceLine(
        path=path, began_at=began_at, least_micro_usd=least, most_micro_usd=most, changes=len(changes) - 1
    )


def show(visit: Visit) -> Response:
    """Show nodes; the operator's page loads fleets and machines by itself."""
    governs = visit.caller.is_root_admin
    return render(visit, "fleet.html", fleets=sorted(visit.ctx.fleets) if governs else (), **_nodes(visit))


def show_nodes(visit: Visit) -> Response:
    """Show the nodes alone, which the page loads again and again."""
    return render(visit, "node_list.html", **_nodes(visit))


def _nodes(visit: Visit) -> dict[str, Any]:
    found = list_nodes(
        visit.ctx, visit.caller, gone=visit.query("gone") == "yes", cursor=visit.query("cursor"), limit=PER_PAGE
    )
    gone = visit.query("gone")
    return {
        "nodes": found.items,
        "is_operator": visit.caller.is_root_admin,
        "here": visit.url("/fleet", gone=gone),
        "refresh_url": visit.url("/fleet/nodes", gone=gone, cursor=visit.query("cursor")),
        "next_url": visit.url("/fleet", gone=gone, cursor=found.next) if found.next else "",
        "first_url": visit.url("/fleet", gone=gone) if visit.query("cursor") else "",
        "shows_gone": gone == "yes",
    }


def show_fleet(visit: Visit) -> Response:
    """Show one fleet: wanted, there, and what is wrong, in words."""
    fleet = read_fleet(visit.ctx, visit.caller, visit.path("name"))
    return render(visit, "one_fleet.html", fleet=fleet, prices=_prices(visit, fleet), faults={})


def show_loops(visit: Visit) -> Response:
    """Show what each loop of this server did last, which the operator's page loads by itself."""
    return render(visit, "loops.html", **loops_of(visit))


def loops_of(visit: Visit) -> dict[str, Any]:
    """Return the loops of this server, those in trouble first, and those in trouble alone."""
    loops = read_loops(visit.caller, visit.request.app.state.loops_status()).items
    return {"loops": loops, "ill": [each for each in loops if each.in_trouble]}


def show_machines(visit: Visit) -> Response:
    """Show the health of machines, those whose state changed last first."""
    given = visit.query("state")
    state = MachineState(given) if given in set(MachineState) else None
    found = operator_actions.list_machines(
        visit.ctx, visit.caller, state=state, cursor=visit.query("cursor"), limit=PER_PAGE
    )
    here = visit.url("/fleet/machines", state=state)
    return render(
        visit,
        "machines.html",
        machines=found.items,
        given=str(state or ""),
        states=[("", "any"), *((str(each), str(each)) for each in MachineState)],
        here=here,
        next_url=visit.url("/fleet/machines", state=state, cursor=found.next) if found.next else "",
        first_url=here if visit.query("cursor") else "",
    )


def quarantine(visit: Visit) -> Response:
    """Give a machine no more work."""
    reason = QuarantineMachine(reason=visit.form.get("reason")[:500] or "by hand").reason
    operator_actions.quarantine_machine(visit.ctx, visit.caller, visit.path("machine_id"), reason=reason)
    return see(visit.url("/fleet/machines", said="quarantined"))


def release(visit: Visit) -> Response:
    """Clear all that is held against a machine."""
    operator_actions.release_machine(visit.ctx, visit.caller, visit.path("machine_id"))
    visit.request.app.state.wakeup.notify()
    return see(visit.url("/fleet/machines", said="released"))


def drain(visit: Visit) -> Response:
    """Give a node no more jobs."""
    drain_node(visit.ctx, visit.caller, visit.path("node_id"))
    visit.request.app.state.wakeup.notify()
    return see(visit.url("/fleet", said="drained"))


def undrain(visit: Visit) -> Response:
    """Let a node have jobs again."""
    undrain_node(visit.ctx, visit.caller, visit.path("node_id"))
    visit.request.app.state.wakeup.notify()
    return see(visit.url("/fleet", said="undrained"))


def pause(visit: Visit) -> Response:
    """Have no nodes of a fleet until it is resumed."""
    return _fleet_done(visit, operator_actions.pause_fleet, "fleet-paused")


def resume(visit: Visit) -> Response:
    """Let a paused fleet follow the queue again."""
    return _fleet_done(visit, operator_actions.resume_fleet, "fleet-resumed")


def scale(visit: Visit) -> Response:
    """Set the limits of a fleet; an empty field goes back to the settings."""
    require_root_admin(visit.caller)
    faults: dict[str, str] = {}
    wanted = {name: whole_number(visit.form, name, faults) for name in ("min_nodes", "max_nodes")}
    asked, more = asked_of(ScaleFleet, wanted)
    faults |= more
    if faults:
        fleet = read_fleet(visit.ctx, visit.caller, visit.path("name"))
        return render(
            visit, "one_fleet_page.html", status=400, fleet=fleet, prices=_prices(visit, fleet), faults=faults
        )
    return _fleet_done(
        visit, lambda ctx, caller, name: operator_actions.scale_by_hand(ctx, caller, name, asked), "fleet-scaled"
    )


def _fleet_done(visit: Visit, verb: Callable[..., Any], said: str) -> Response:
    name = visit.path("name")
    try:
        verb(visit.ctx, visit.caller, name)
    except (Conflict, FleetRefused) as error:
        fleet = read_fleet(visit.ctx, visit.caller, name)
        faults = {"min_nodes": error.public}
        return render(
            visit, "one_fleet_page.html", status=409, fleet=fleet, prices=_prices(visit, fleet), faults=faults
        )
    visit.request.app.state.wakeup.notify()
    return see(visit.url("/fleet", said=said))


def _prices(visit: Visit, fleet: Fleet) -> PriceLine | None:
    return draw_prices(fleet.price_changes, now=instant(visit.ctx.clock.now_ms()))


_FLEET = "/projects/{project_id}/fleet"
ROUTES = (
    page(_FLEET, show),
    page(f"{_FLEET}/machines", show_machines),
    part(f"{_FLEET}/nodes", show_nodes, kept_ms=LIST_KEPT_MS),
    part(f"{_FLEET}/loops", show_loops),
    page(f"{_FLEET}/named/{{name}}", show_fleet),
    action(f"{_FLEET}/machines/{{machine_id}}/quarantine", quarantine),
    action(f"{_FLEET}/machines/{{machine_id}}/release", release),
    action(f"{_FLEET}/nodes/{{node_id}}/drain", drain),
    action(f"{_FLEET}/nodes/{{node_id}}/undrain", undrain),
    action(f"{_FLEET}/named/{{name}}/pause", pause),
    action(f"{_FLEET}/named/{{name}}/resume", resume),
    action(f"{_FLEET}/named/{{name}}/scale", scale),
)
