"""How a fleet's nodes are spread over its container groups, by the groups' numbers. Sizes are in replicas."""

from collections.abc import Mapping, Sequence


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
