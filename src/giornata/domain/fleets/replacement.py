"""Count the machines of a fleet that may be replaced now, and choose the instances that a roll renews next.

The provider keeps a reallocated machine away from the fleet for days (48 hours on SaladCloud), so a fleet that
reallocates too many machines runs out of them. A roll renews only nodes that hold no job, a few at a time.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from giornata.domain.billing.money import MS_PER_HOUR

MS_PER_MINUTE = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapPolicy:
    """Shares of a fleet that may be replaced. Each share allows at least one machine."""

    hourly_share: float = 0.1
    excluded_share: float = 0.5  # away at one time, because they were reallocated
    drain_s: float = 120.0  # for the last checkpoint of what a quarantined machine still does


def may_reallocate(
    *,
    nodes: int,
    reallocated_at_ms: Collection[int],
    per_minute: int | None,
    excluded_s: float,
    policy: ReapPolicy,
    now_ms: int,
) -> int:
    """Return the number of further machines that may be reallocated now.

    `nodes` is what the fleet has; `reallocated_at_ms` says when machines were, as far back as `excluded_s` and an
    hour; `per_minute` is the provider's limit, None for none.
    """

    def since(ms: float) -> int:
        return sum(1 for each in reallocated_at_ms if each > now_ms - ms)

    rooms = [
        max(1, int(nodes * policy.hourly_share)) - since(MS_PER_HOUR),
        max(1, int(nodes * policy.excluded_share)) - since(excluded_s * 1000),
    ]
    if per_minute is not None:
        rooms.append(per_minute - since(MS_PER_MINUTE))
    return max(0, min(rooms))


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
    """Instances that a roll drains and renews now. `over`: no instance is outdated any more."""

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
