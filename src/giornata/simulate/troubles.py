"""Troubles that strike many machines at once, at a known moment."""

import math
from functools import partial

from giornata.simulate.draws import rng
from giornata.simulate.scenario import PlannedFault
from giornata.simulate.world import Simulation


def plan(world: Simulation, trouble: PlannedFault) -> None:
    """Put down on the agenda what will go wrong, and when it is over."""
    begin_ms = world.agenda.start_ms + round(trouble.at_s * 1000)
    end_ms = begin_ms + round(trouble.for_s * 1000)
    match trouble.kind:
        case "region-lost":
            world.agenda.at(begin_ms, partial(_lose_region, world, trouble.share))
        case "evening":
            world.agenda.at(begin_ms, partial(_come_home, world, trouble))
        case "sold-out":
            for fleet in world.fleets.values():
                world.agenda.at(begin_ms, fleet.sell_out)
                world.agenda.at(end_ms, fleet.restock)
        case "server-away" | "provider-away":
            for at_ms, away in ((begin_ms, True), (end_ms, False)):
                world.agenda.at(at_ms, partial(_set_away, world, trouble, away=away))


def _set_away(world: Simulation, trouble: PlannedFault, *, away: bool) -> None:
    if trouble.kind == "server-away":
        world.plane.away = away
        return
    for fleet in world.fleets.values():
        fleet.away = away


def _lose_region(world: Simulation, share: float) -> None:
    for fleet in world.fleets.values():
        for container in list(fleet.present.values()):
            if rng(world.seed, "region", container.machine.id).random() < share:
                fleet.interrupt(container, zombie=False)


def _come_home(world: Simulation, trouble: PlannedFault) -> None:
    """Owners come home within minutes, and take their machines back."""
    for fleet in world.fleets.values():
        by_machine = {
            rng(world.seed, "evening", f"{trouble.at_s} {each.machine.id}").random(): each
            for each in fleet.present.values()
            if each.running_since_ms is not None
        }
        leaving = math.ceil(trouble.share * len(by_machine))
        for lot, container in sorted(by_machine.items())[:leaving]:
            moment = rng(world.seed, "minute", f"{lot} {container.machine.id}").random()
            world.agenda.after(moment * trouble.for_s, partial(fleet.interrupt, container, zombie=False))
