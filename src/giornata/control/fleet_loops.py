"""The loops of fleets: two for each, so that a provider that does not answer delays no other fleet."""

from collections.abc import Callable, Mapping
from functools import partial

from giornata.control.context import Context, GovernedFleet
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.loops import Loop

SCALE_EVERY_S = 5.0
RECONCILE_EVERY_S = 15.0
# Processes of one's own can be looked at as often as one likes.
LOCAL_EVERY_S = 1.0

Turn = Callable[[Context, str], str]


def fleet_loops(fleets: Mapping[str, GovernedFleet]) -> tuple[Loop, ...]:
    """Return the loops `reconcile:NAME` and `scale:NAME` of each fleet."""
    loops = []
    for name, governed in fleets.items():
        local = governed.driver == "local"
        loops += [
            _loop(f"reconcile:{name}", LOCAL_EVERY_S if local else RECONCILE_EVERY_S, reconcile_fleet, name),
            _loop(f"scale:{name}", LOCAL_EVERY_S if local else SCALE_EVERY_S, scale_fleet, name),
        ]
    return tuple(loops)


def forget_asked(ctx: Context, name: str) -> None:
    """Forget how many nodes an earlier process asked for: those nodes were in its care, and are there no more."""
    with ctx.store.begin() as tx:
        tx.fleets.update(name, desired=0, told=None)


def _loop(name: str, every_s: float, turn: Turn, fleet: str) -> Loop:
    # A provider that is away does not make this server one that cannot serve.
    return Loop(name=name, every_s=every_s, run=partial(_run, turn, fleet), vital=False)


def _run(turn: Turn, fleet: str, ctx: Context) -> str:
    return turn(ctx, fleet)
