"""Large files that pictures need besides their base, such as ControlNets and refiners, and the nodes that fetch them.

A lease names such a file, and its node fetches the file unless it has it. What one server process knows of this is
kept here: which files are large, which nodes were told to fetch them, and which orders a node was not given for the
sake of `may_fetch`. Nothing here is the truth. What is forgotten costs the fetch of a file.
"""

import threading
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from giornata.domain.generation.model_routing import Holders, RoutingPolicy

LEAST_BYTES_PER_S = 20_000_000
"""A node that was told to fetch a file fetches it at no lower rate; later it counts as having the file."""
BELIEVED_MS = 600_000
"""A node has reported the file after so long, or has not got it: what it was told is forgotten then."""
PASSED_OVER_MS = 5000
"""A node to which an order's pictures were not given is asked to wait so long before it is looked at again."""
MOST_FILES = 10_000
MOST_ORDERS = 64
"""Orders of one node that are passed over; the statement of a claim names them."""


def may_fetch(
    holders: Holders, *, work_s: float, waited_s: float, relief: bool = False, policy: RoutingPolicy
) -> bool:
    """Return True when one more node may fetch a large file for pictures that need it.

    One node fetches a file that no other has. Another one follows when the work that waits takes those that have or
    fetch the file longer than `replicate_s`, or, one at a time, when its pictures have waited for `delay_s`. A share
    of the leases, `relief`, takes its pictures in any case.
    """
    if relief or work_s > holders.replicas * policy.replicate_s:
        return True
    return not holders.fetching and (holders.replicas == 0 or waited_s >= policy.delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetch:
    """A fetch that a node was told of: when it began, and when it is over at the latest."""

    began_ms: int
    over_ms: int


class LargeFiles:
    """The large files that this process has met, and their fetches. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._fetches: dict[str, dict[str, _Fetch]] = defaultdict(dict)  # by file and node
        self._passed: dict[str, dict[str, int]] = defaultdict(dict)  # by node and order, and until when
        self._waits_since_ms: dict[str, int] = {}  # by order, since it was first passed over

    def missing(self, held: Collection[str]) -> frozenset[str]:
        """Return the large files that are not among those that a node holds. Costs nothing while none is known."""
        return self._known.difference(held) if self._known else self._known

    def note_fetch(self, node_id: str, sha256: str, size_bytes: int, *, at_ms: int) -> None:
        """Note that the node was told to fetch this file, which is large."""
        with self._lock:
            if len(self._known) >= MOST_FILES:
                self._known = frozenset()
                self._fetches.clear()
            self._known |= {sha256}
            began_ms = at_ms if (before := self._fetches[sha256].get(node_id)) is None else before.began_ms
            if at_ms - began_ms >= BELIEVED_MS:
                began_ms = at_ms
            over_ms = began_ms + size_bytes * 1000 // LEAST_BYTES_PER_S
            self._fetches[sha256][node_id] = _Fetch(began_ms=began_ms, over_ms=over_ms)

    def told(self, sha256: str, *, at_ms: int) -> tuple[frozenset[str], frozenset[str]]:
        """Return the nodes that fetch the file now, and those that were told to long enough ago to have it."""
        with self._lock:
            told = {
                node_id: each.over_ms
                for node_id, each in self._fetches.get(sha256, {}).items()
                if 0 <= at_ms - each.began_ms < BELIEVED_MS
            }
        fetching = frozenset(node_id for node_id, over_ms in told.items() if at_ms < over_ms)
        return fetching, frozenset(told) - fetching

    def told_to(self, node_id: str, *, at_ms: int) -> frozenset[str]:
        """Return the files that the node was told to fetch: it needs no leave to use them in its next lease."""
        with self._lock:
            own = ((sha256, of_file.get(node_id)) for sha256, of_file in self._fetches.items())
            return frozenset(
                sha256 for sha256, each in own if each is not None and 0 <= at_ms - each.began_ms < BELIEVED_MS
            )

    # ---- orders that a node was not given

    def pass_over(self, node_id: str, order_id: str, *, at_ms: int) -> None:
        """Note that the node was not given the order's pictures, and gets none of them for a moment."""
        with self._lock:
            self._waits_since_ms.setdefault(order_id, at_ms)
            self._passed[node_id][order_id] = at_ms + PASSED_OVER_MS

    def passed_over(self, node_id: str, *, at_ms: int) -> tuple[str, ...]:
        """Return the orders whose pictures the node does not get now."""
        if not self._passed:
            return ()
        with self._lock:
            passed = self._passed.get(node_id, {})
            return tuple(sorted(order_id for order_id, until_ms in passed.items() if at_ms < until_ms)[:MOST_ORDERS])

    def waited_s(self, order_id: str, *, at_ms: int) -> float:
        """Return the time since pictures of the order were first kept from a node."""
        return (at_ms - self._waits_since_ms.get(order_id, at_ms)) / 1000

    def forget_old(self, *, at_ms: int) -> None:
        """Forget what is long past. Called now and then."""
        with self._lock:
            for of_file in self._fetches.values():
                for node_id in [each for each, told in of_file.items() if at_ms - told.began_ms >= BELIEVED_MS]:
                    del of_file[node_id]
            for of_node in self._passed.values():
                for order_id in [each for each, until_ms in of_node.items() if at_ms >= until_ms]:
                    del of_node[order_id]
            self._passed = defaultdict(dict, {node: orders for node, orders in self._passed.items() if orders})
            waiting = self._waits_since_ms.items()
            self._waits_since_ms = {order: since for order, since in waiting if at_ms - since < BELIEVED_MS}
