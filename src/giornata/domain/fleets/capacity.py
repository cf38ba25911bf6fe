"""Find the instances of a fleet that could really take the jobs that wait."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Use(StrEnum):
    """Activity of the node on an instance."""

    NONE = "none"  # nobody has been heard from it yet, or not for long
    IDLE = "idle"
    BUSY = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Queued jobs that are alike in what they ask of a node; `jobs` of them, to be done by `deadline_at_ms`.

    With a `joint_key` they may join the jobs of that key that are at work, or run on a node of their own.
    """

    kind: str
    jobs: int
    min_vram_bytes: int = 0
    project_id: str | None = None  # None: any node's key will do
    banned_machines: frozenset[str] = frozenset()
    only_machine_id: str | None = None
    deadline_at_ms: int | None = None
    joint_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Capabilities of a node. None means unknown and sufficient; for project_id, None means all projects."""

    kinds: tuple[str, ...]
    vram_bytes: int | None = None
    places: int = 1
    project_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One instance of a fleet as believed now. Instants are epoch ms.

    `since_ms`: since when the node has had nothing to do, or since when one is waited for. `asked_ms`: when it was
    asked for, as far as that is known. `sound`: its machine is fit for new jobs. `ended`: the provider was asked to
    end it. Of a node at work, `taken` are the places that its jobs have, and `joint_key` is what others need to join
    them; None: nobody may. `billed`: its provider bills it now. `came`: a node
    on it has asked for work before. `fails_to_start`: its node's latest starts failed.
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
    billed: bool = False
    came: bool = False
    fails_to_start: bool = False
    taken: int = 0
    joint_key: str | None = None

    @property
    def room(self) -> int:
        """Places that are free; of a node at work those beside its jobs, for such as may join them."""
        if self.use is not Use.BUSY:
            return self.offer.places
        return 0 if self.joint_key is None else max(0, self.offer.places - self.taken)

    @property
    def stays(self) -> bool:
        """True when the instance was not asked to leave or end."""
        return self.leaving_since_ms is None and not self.ended


@dataclass(slots=True, kw_only=True)
class Placement:
    """An assignment: number of jobs by instance, and the jobs that fit nowhere."""

    placed: dict[str, int] = field(default_factory=dict)
    left: list[Demand] = field(default_factory=list)


def could_take(demand: Demand, offer: Offer, *, machine_id: str | None, sound: bool = True) -> bool:
    """Return True when such a node may be handed these jobs at all, now or when it is free.

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
    """Return True when `could_take` holds for the instance."""
    return could_take(demand, instance.offer, machine_id=instance.machine_id, sound=instance.sound)


def takes_now(demand: Demand, instance: InstanceView) -> bool:
    """Return True when the instance could take the jobs now; a busy node only takes jobs that may join its batch."""
    joins = instance.use is not Use.BUSY or (
        instance.joint_key is not None and instance.joint_key == demand.joint_key
    )
    return joins and takes(demand, instance)


def place(
    demand: Sequence[Demand],
    instances: Sequence[InstanceView],
    *,
    fits: Callable[[Demand, InstanceView], bool] = takes_now,
) -> Placement:
    """Put jobs on instances where they fit, as many on each as it has room: the most particular jobs first, each on
    the node that can do least besides; beside jobs at work those that may join them, before any other node.
    """
    free = {each.id: each.room for each in instances}
    least_first = sorted(instances, key=_does_least)
    result = Placement()
    for group in sorted(demand, key=_particular, reverse=True):
        left = group.jobs
        for each in least_first:
            taken = min(left, free[each.id]) if free[each.id] and fits(group, each) else 0
            if taken:
                free[each.id] -= taken
                left -= taken
                result.placed[each.id] = result.placed.get(each.id, 0) + taken
        if left:
            result.left.append(replace(group, jobs=left))
    return result


def _does_least(instance: InstanceView) -> tuple[bool, int, int, str]:
    offer = instance.offer
    return instance.use is not Use.BUSY, offer.vram_bytes or 0, len(offer.kinds), instance.id


def with_joinable(groups: Sequence[Demand], joinable: Sequence[Demand]) -> tuple[Demand, ...]:
    """The groups, with those jobs that may join others at work in groups of their own.

    `joinable` counts them besides.
    """
    return _apart(groups, joinable, lambda group: replace(group, joint_key=None))


def with_deadlines(groups: Sequence[Demand], urgent: Sequence[Demand]) -> tuple[Demand, ...]:
    """The groups, with those jobs that have a deadline in groups of their own.

    `urgent` counts them besides: of jobs that are banned somewhere it may count some, which then keep no deadline.
    """
    return _apart(groups, urgent, lambda group: replace(group, deadline_at_ms=None))


def within_rooms(groups: Sequence[Demand], rooms: Mapping[str, int]) -> list[Demand]:
    """The groups without jobs that could not begin: of each project in `rooms` so many are left, the first ones.

    Jobs for one machine are the platform's own, and are not counted.
    """
    left, found = dict(rooms), []
    for group in groups:
        jobs = group.jobs
        if group.only_machine_id is None and group.project_id in left:
            jobs = min(jobs, left[group.project_id])
            left[group.project_id] -= jobs
        if jobs:
            found.append(replace(group, jobs=jobs))
    return found


def _apart(
    groups: Sequence[Demand], particular: Sequence[Demand], general: Callable[[Demand], Demand]
) -> tuple[Demand, ...]:
    """Separate the `particular` jobs from their groups; `general` gives the group of a job."""
    left = {replace(group, jobs=0): group.jobs for group in groups}
    found = []
    for group in particular:
        alike = replace(general(group), jobs=0)
        taken = min(group.jobs, left.get(alike, 0))
        if taken:
            left[alike] -= taken
            found.append(replace(group, jobs=taken))
    return (*found, *(replace(group, jobs=jobs) for group, jobs in left.items() if jobs))


def jobs_in(demand: Sequence[Demand]) -> int:
    """Return the number of jobs in these demands."""
    return sum(group.jobs for group in demand)


def nodes_for(demand: Sequence[Demand], places: int) -> int:
    """Return the number of nodes that such jobs fill."""
    return -(-jobs_in(demand) // places)


def _particular(group: Demand) -> tuple[bool, int, int, str]:
    return group.only_machine_id is not None, len(group.banned_machines), group.min_vram_bytes, group.kind
