"""Which of a fleet's instances could really take the jobs that wait."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Use(StrEnum):
    """What the node on an instance is at."""

    NONE = "none"  # nobody has been heard from it yet, or not for long
    IDLE = "idle"
    BUSY = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Queued jobs that are alike in what they ask of a node; `jobs` of them, to be done by `deadline_at_ms`."""

    kind: str
    jobs: int
    min_vram_bytes: int = 0
    project_id: str | None = None  # None: any node's key will do
    banned_machines: frozenset[str] = frozenset()
    only_machine_id: str | None = None
    deadline_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a node can do. None: it is not known, and taken to be good enough; for a project: it serves all."""

    kinds: tuple[str, ...]
    vram_bytes: int | None = None
    places: int = 1
    project_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One instance of a fleet as believed now. Instants are epoch ms.

    `since_ms`: since when the node has had nothing to do, or since when one is waited for. `asked_ms`: when it was
    asked for, as far as that is known. `sound`: its machine is fit for new jobs. `ended`: the provider was asked to
    end it.
    """

    id: str
    offer: Offer
    machine_id: str | None = None
    use: Use = Use.NONE
    since_ms: int = 0
    asked_ms: int = 0
    sound: bool = True
    leaving_since_ms: int | None = None
    ended: bool = False

    @property
    def stays(self) -> bool:
        """Nobody told it to go."""
        return self.leaving_since_ms is None and not self.ended


@dataclass(slots=True, kw_only=True)
class Placement:
    """Who would take what: jobs by instance, and what is left over of each group."""

    placed: dict[str, int] = field(default_factory=dict)
    left: list[Demand] = field(default_factory=list)


def could_take(demand: Demand, offer: Offer, *, machine_id: str | None, sound: bool = True) -> bool:
    """Whether such a node may be handed these jobs at all, now or when it is free.

    On a machine that is not fit only what is meant for just this machine runs. A machine whose name is not known yet
    is another than those that are.
    """
    if demand.only_machine_id is not None and demand.only_machine_id != machine_id:
        return False
    if not sound and demand.only_machine_id is None:
        return False
    if demand.kind not in offer.kinds or (machine_id is not None and machine_id in demand.banned_machines):
        return False
    if offer.project_id is not None and demand.project_id not in {None, offer.project_id}:
        return False
    return offer.vram_bytes is None or offer.vram_bytes >= demand.min_vram_bytes


def takes(demand: Demand, instance: InstanceView) -> bool:
    """As `could_take`, of an instance."""
    return could_take(demand, instance.offer, machine_id=instance.machine_id, sound=instance.sound)


def place(
    demand: Sequence[Demand],
    instances: Sequence[InstanceView],
    *,
    fits: Callable[[Demand, InstanceView], bool] = takes,
) -> Placement:
    """Put jobs on free instances where they fit, as many on each as it has places: the most particular jobs first,
    each on the node that can do least besides.

    A node at work has no free place: whether a job may join its batch is for the claim to find out.
    """
    free = {each.id: each.offer.places for each in instances}
    least_first = sorted(instances, key=lambda each: (each.offer.vram_bytes or 0, len(each.offer.kinds), each.id))
    result = Placement()
    for group in sorted(demand, key=_particular, reverse=True):
        left = group.jobs
        for each in least_first:
            taken = min(left, free[each.id]) if fits(group, each) else 0
            if taken:
                free[each.id] -= taken
                left -= taken
                result.placed[each.id] = result.placed.get(each.id, 0) + taken
        if left:
            result.left.append(replace(group, jobs=left))
    return result


def with_deadlines(groups: Sequence[Demand], urgent: Sequence[Demand]) -> tuple[Demand, ...]:
    """The groups, with those jobs that have a deadline in groups of their own.

    `urgent` counts them besides: of jobs that are banned somewhere it may count some, which then keep no deadline.
    """
    left = {replace(group, jobs=0): group.jobs for group in groups}
    found = []
    for group in urgent:
        alike = replace(group, jobs=0, deadline_at_ms=None)
        taken = min(group.jobs, left.get(alike, 0))
        if taken:
            left[alike] -= taken
            found.append(replace(group, jobs=taken))
    return (*found, *(replace(group, jobs=jobs) for group, jobs in left.items() if jobs))


def jobs_in(demand: Sequence[Demand]) -> int:
    """How many jobs that is."""
    return sum(group.jobs for group in demand)


def nodes_for(demand: Sequence[Demand], places: int) -> int:
    """Nodes that such jobs fill."""
    return -(-jobs_in(demand) // places)


def _particular(group: Demand) -> tuple[bool, int, int, str]:
    return group.only_machine_id is not None, len(group.banned_machines), group.min_vram_bytes, group.kind
