"""Who of a fleet is renewed next, so that no work is lost: only nodes that hold no job, a few at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

AT_ONCE_SHARE = 0.1  # of a fleet; at least one


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledInstance:
    """One instance of a fleet that is rolled. `told`: its node gets no work, for it is to be renewed."""

    id: str
    outdated: bool
    told: bool
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RollStep:
    """What to do now: whom to tell, and whom to have renewed. `over`: nobody is outdated any more."""

    tell: tuple[str, ...] = ()
    renew: tuple[str, ...] = ()
    over: bool = False


def roll_step(instances: Sequence[RolledInstance], *, one_by_one: bool) -> RollStep:
    """The next step of a roll, from those instances that are to stay.

    Where the provider can renew one by one, about a tenth of the fleet is told at a time, idle nodes first. Where it
    restarts all at once, all are told, and nothing happens until the last of them has let go of its job.
    """
    old = [each for each in instances if each.outdated]
    if not old:
        return RollStep(over=True)
    told = [each for each in old if each.told]
    others = sorted((each for each in old if not each.told), key=lambda each: (each.busy, each.id))
    if not one_by_one:
        if others or any(each.busy for each in instances):
            return RollStep(tell=tuple(each.id for each in others))
        return RollStep(renew=tuple(each.id for each in told))
    room = max(1, int(len(instances) * AT_ONCE_SHARE)) - len(told)
    return RollStep(
        tell=tuple(each.id for each in others[: max(0, room)]),
        renew=tuple(each.id for each in told if not each.busy),
    )
