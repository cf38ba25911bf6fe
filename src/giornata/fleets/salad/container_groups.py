"""The container groups of a fleet, as they were found, and what is done to one of them."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from giornata.control.ports.fleet import Instance, InstanceState
from giornata.domain.errors import FleetRefused
from giornata.fleets.opening import FLEET
from giornata.fleets.salad.calls import MOST_LISTED, Document, GroupCalls, SaladCalls
from giornata.fleets.salad.translation import (
    AT_REST,
    DRAINED_COST,
    deletion_cost,
    instance_of,
    replicas_of,
    status_of,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedInstance:
    """An instance, and what it costs to delete by the provider and by the plan."""

    instance: Instance
    had_cost: Any
    cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerGroup:
    """The group of that `number`. `document` is how it was found; None: there is none."""

    number: int
    calls: GroupCalls
    document: Document | None

    @property
    def at_rest(self) -> bool:
        """True when no replica runs or is starting."""
        return self.document is None or status_of(self.document) in AT_REST

    @property
    def size(self) -> int:
        """The number of replicas that run or are starting."""
        return 0 if self.document is None or self.at_rest else replicas_of(self.document)

    def listed(self, leaving: Collection[str]) -> Sequence[ListedInstance]:
        """The instances that are present; `leaving` are the ids of those that are to go first."""
        rows = [(instance_of(row), row.get("deletion_cost")) for row in self.calls.instances()]
        return [
            ListedInstance(
                instance=each,
                had_cost=had,
                cost=deletion_cost(each, leaving=each.id in leaving, drained=had == DRAINED_COST),
            )
            for each, had in rows
            if each.state is not InstanceState.STOPPING
        ]

    def shrink(self, size: int, listed: Sequence[ListedInstance]) -> None:
        """Lower the number of replicas, after the provider knows which to take."""
        for each in listed:
            if each.had_cost == each.cost:
                continue
            try:
                # One that is not there any more needs none.
                self.calls.set_deletion_cost(each.instance.id, each.cost)
            except FleetRefused:
                # An unstarted instance loses nothing by going first. For a running one the number must not fall.
                if each.instance.state is InstanceState.RUNNING:
                    raise
        self.calls.patch({"replicas": size})

    def start(self, changes: Document) -> None:
        """Have the group run, with these changes. Replicas first: a group that is started before has its old size."""
        if changes:
            self.calls.patch(changes)
        try:
            self.calls.start()
        except FleetRefused:
            now = self.calls.group()
            if now is None or status_of(now) in AT_REST:
                raise

    def stop(self) -> None:
        """Stop all replicas in any state: a group that is only being deployed will run, and be billed."""
        if not self.at_rest:
            try:
                self.calls.stop()
            except FleetRefused:
                now = self.calls.group()
                if now is not None and status_of(now) not in AT_REST:
                    raise
        if self.document is not None and replicas_of(self.document):
            # It is not published whether replicas of a group at rest count against the quota: there are none.
            with suppress(FleetRefused):
                self.calls.patch({"replicas": 0})

    def remove(self) -> None:
        """Delete the group, which is at rest."""
        try:
            self.calls.delete()
        except FleetRefused as error:
            log.warning("the empty container group %s stays: %s", self.calls.name, error)


def find_groups(calls: SaladCalls, *, base: str, mark: str, most: int) -> Sequence[ContainerGroup]:
    """The groups of the fleet by their numbers: those that there are, and those that it may make up to `most`.

    The group named `base` is always the fleet's. Further ones have a number, and the fleet's mark in their container:
    somebody else may have made a group of such a name.
    """
    rows = calls.groups()
    found = {number: row for row in rows if (number := group_number(base, row.get("name"))) is not None}
    if len(rows) >= MOST_LISTED:
        # Perhaps there are more than are told. Numbers of a fleet's groups have no gaps.
        for number in range(1, most + 1):
            document = found.get(number) or calls.of(group_name(base, number)).group()
            if document is None:
                break
            found[number] = document
    numbers = sorted({*found, *range(1, most + 1)})
    return [
        ContainerGroup(number=each, calls=calls.of(group_name(base, each)), document=found.get(each))
        for each in numbers
        if each == 1 or each not in found or is_marked(found[each], mark)
    ]


def is_marked(group: Document, mark: str) -> bool:
    """Return True when the group's container has the fleet's mark."""
    container = group.get("container")
    env = container.get("environment_variables") if isinstance(container, dict) else None
    return isinstance(env, dict) and env.get(FLEET) == mark


def remove_empty(groups: Sequence[ContainerGroup], sizes: Mapping[int, int]) -> None:
    """Remove groups after the first that were found at rest and have no size now.

    The highest numbers go first, and a group only when it has the highest number: so no gaps come about.
    """
    for group in sorted(groups, key=lambda each: -each.number):
        if group.document is None:
            continue
        if group.number == 1 or not group.at_rest or sizes[group.number]:
            return
        group.remove()


MOST_GROUPS = 20
LONGEST_NAME = 63
SUFFIX = "-group-"


def group_name(base: str, number: int) -> str:
    """`loras` is the first group of the fleet, `loras-group-2` the second."""
    return base if number == 1 else f"{base}{SUFFIX}{number}"


def group_number(base: str, name: object) -> int | None:
    """Return the number of the fleet's group with that name; None: no group of this fleet has it."""
    if name == base:
        return 1
    found = re.fullmatch(rf"{re.escape(base + SUFFIX)}([1-9][0-9]?)", name) if isinstance(name, str) else None
    number = int(found[1]) if found is not None else 0
    return number if 2 <= number <= MOST_GROUPS else None


def is_kept(name: str) -> bool:
    """Return True when the name is kept for a further group of some fleet, so that no fleet may begin with it."""
    base, suffix, _ = name.rpartition(SUFFIX)
    return bool(suffix) and group_number(base, name) is not None


def most_groups(base: str, *, group_id: str | None) -> int:
    """Return the most groups of a fleet: one where the name leaves no room for a number, or the id is given."""
    if group_id is not None or len(group_name(base, MOST_GROUPS)) > LONGEST_NAME:
        return 1
    return MOST_GROUPS


def grown(sizes: Mapping[int, int], nodes: int, *, most_each: int) -> dict[int, int]:
    """The sizes when the fleet is to have `nodes`, which are more than now. No group becomes smaller.

    Groups that have nodes are filled first, then the others by their number.
    """
    found = dict(sizes)
    more = nodes - sum(sizes.values())
    for number in sorted(sizes, key=lambda each: (sizes[each] == 0, each)):
        added = min(more, max(0, most_each - found[number]))
        found[number] += added
        more -= added
    return found


def shrunk(sizes: Mapping[int, int], nodes: int, present: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The sizes when the fleet is to have `nodes`, which are fewer than now. No group becomes larger.

    `present` has an entry for each instance: its deletion cost, and the number of its group. Where more are present
    than `nodes`, those of the lowest cost go, and among equals those of the group with the highest number. The rest
    of the replicas are still to come: these are taken from the highest numbers.
    """
    cheapest_first = sorted(present, key=lambda each: (each[0], -each[1]))
    found = dict.fromkeys(sizes, 0)
    for _, number in cheapest_first[max(0, len(present) - nodes) :]:
        found[number] = min(sizes[number], found[number] + 1)
    to_come = nodes - sum(found.values())
    for number in sorted(sizes):
        added = min(to_come, sizes[number] - found[number])
        found[number] += added
        to_come -= added
    return found
