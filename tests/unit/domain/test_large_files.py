"""Large files besides a base: which nodes may fetch them, what one process knows of it, and what the rule saves."""

import heapq
import itertools
import random
from collections import Counter
from typing import NamedTuple

import pytest

from giornata.domain.generation.fleet_models import BaseFiles, FleetModels, NodeModels
from giornata.domain.generation.large_files import (
    BELIEVED_MS,
    LEAST_BYTES_PER_S,
    MOST_FILES,
    PASSED_OVER_MS,
    LargeFiles,
    may_fetch,
)
from giornata.domain.generation.model_routing import Holders, RoutingPolicy

POLICY = RoutingPolicy()
LATE_S = POLICY.delay_s
ONE_SECOND = LEAST_BYTES_PER_S


@pytest.mark.parametrize(
    ("holders", "work_s", "waited_s", "relief", "allowed"),
    [
        (Holders(), 1, 0, False, True),
        (Holders(fetching=1), 1, 0, False, False),
        (Holders(disk=1), 1, 0, False, False),
        (Holders(disk=1), POLICY.replicate_s + 1, 0, False, True),
        (Holders(disk=1, fetching=1), POLICY.replicate_s + 1, 0, False, False),
        (Holders(disk=1), 1, LATE_S, False, True),
        (Holders(fetching=1), 1, LATE_S, False, False),
        (Holders(disk=5, fetching=1), 1, 0, True, True),
    ],
)
def test_node_fetches_what_nobody_has_or_what_too_few_have_or_what_has_waited(
    holders: Holders, work_s: float, waited_s: float, relief: bool, allowed: bool
) -> None:
    assert may_fetch(holders, work_s=work_s, waited_s=waited_s, relief=relief, policy=POLICY) is allowed


def test_fetch_is_under_way_as_long_as_it_takes_and_then_the_node_counts_as_having_the_file() -> None:
    large = LargeFiles()
    large.note_fetch("n1", "net", 10 * ONE_SECOND, at_ms=1000)
    large.note_fetch("n1", "net", 10 * ONE_SECOND, at_ms=6000)  # the next lease names it too
    n1, nobody = frozenset({"n1"}), frozenset[str]()
    assert large.told("net", at_ms=10_999) == (n1, nobody)
    assert large.told("net", at_ms=11_000) == (nobody, n1)
    assert large.told("net", at_ms=1000 + BELIEVED_MS) == (nobody, nobody)
    assert large.told("other", at_ms=1000) == (nobody, nobody)


def test_file_is_known_as_large_once_it_was_fetched() -> None:
    large = LargeFiles()
    assert large.missing(()) == frozenset()
    large.note_fetch("n1", "net", 1, at_ms=0)
    large.forget_old(at_ms=BELIEVED_MS)
    assert (large.missing(()), large.missing({"net"})) == ({"net"}, frozenset())
    for number in range(MOST_FILES):
        large.note_fetch("n1", str(number), 1, at_ms=0)
    assert len(large.missing(())) <= MOST_FILES


def test_order_is_passed_over_for_a_moment_on_one_node_and_waits_since_the_first_time() -> None:
    large = LargeFiles()
    large.pass_over("n1", "order", at_ms=1000)
    assert large.passed_over("n1", at_ms=999 + PASSED_OVER_MS) == ("order",)
    assert large.passed_over("n2", at_ms=1000) == ()
    assert large.passed_over("n1", at_ms=1000 + PASSED_OVER_MS) == ()
    large.forget_old(at_ms=1000 + PASSED_OVER_MS)
    large.pass_over("n2", "order", at_ms=9000)
    assert (large.waited_s("order", at_ms=11_000), large.waited_s("other", at_ms=11_000)) == (10, 0)


def test_holders_of_a_file_are_live_nodes_that_serve_the_project_and_hold_the_base() -> None:
    fleet = FleetModels()
    fleet.remember_bases({"base": BaseFiles(name="base", sha256s=("b",))}, but_at_most=9)
    both = frozenset({"b", "net"})
    fleet.put("both", NodeModels(seen_at_ms=0, version=1, disk=both))
    fleet.put("without base", NodeModels(seen_at_ms=0, version=1, disk=frozenset({"net"})))
    fleet.put("fetches", NodeModels(seen_at_ms=0, version=1, gpu=frozenset({"base"})))
    fleet.put("stranger", NodeModels(seen_at_ms=0, version=1, owner="ann", disk=both))
    told = {"fetching": {"fetches", "both", "gone"}}
    assert fleet.holders_beside("net", "base", project_id="bob", **told) == Holders(disk=1, fetching=1)
    found = fleet.holders_beside("net", "base", project_id="bob", fetched={"fetches"})
    assert found == Holders(disk=2)
    assert fleet.holders_beside("net", "of the hub", project_id="bob") == Holders(disk=2)


class Played(NamedTuple):
    """Of a run: fetches of each hundred pictures, the mean wait, and the pictures that nobody has begun to draw."""

    fetches: float
    wait_s: float
    left: int


def play(
    *,
    bounded: bool,
    fetch_s: float,
    nodes: int = 50,
    files: int = 20,
    kept: int = 4,
    load: float = 0.5,
    draw_s: float = 10.0,
    seed: int = 1,
    length_s: float = 3600.0,
) -> Played:
    """Draw single pictures on one base, each with one of so many files (Zipf 1.0), of which a disk keeps `kept`.
    Without the bound a node takes the first picture, whatever has to be fetched for it."""
    rng, count = random.Random(seed), itertools.count()
    weights = [1 / (number + 1) for number in range(files)]
    events: list[tuple[float, int, str, int]] = [(0.0, next(count), "arrival", 0)]
    disks: list[list[int]] = [[] for _ in range(nodes)]
    idle, fetching, queue = set(range(nodes)), dict[int, int](), list[tuple[float, int]]()
    waits, fetched, claims = list[float](), 0, itertools.count(1)

    def may_draw(node: int, file: int, waited_s: float, relief: bool) -> bool:
        if file in disks[node] or not bounded:
            return True
        holders = Holders(disk=sum(file in disk for disk in disks), fetching=Counter(fetching.values())[file])
        return may_fetch(holders, work_s=draw_s, waited_s=waited_s, relief=relief, policy=POLICY)

    while events[0][0] < length_s:
        now_s, _, what, node = heapq.heappop(events)
        if what == "arrival":
            queue.append((now_s, rng.choices(range(files), weights)[0]))
            heapq.heappush(events, (now_s + rng.expovariate(load * nodes / draw_s), next(count), "arrival", 0))
        elif what == "fetched":
            disks[node] = [*disks[node], fetching.pop(node)][-kept:]
        else:
            idle.add(node)
        for each in rng.sample(sorted(idle), len(idle)):
            relief = next(claims) % POLICY.relief_every == 0
            found = next((one for one in queue if may_draw(each, one[1], now_s - one[0], relief)), None)
            if found is None:
                continue
            queue.remove(found)
            idle.remove(each)
            needs_fetch = found[1] not in disks[each]
            begins_s = now_s + needs_fetch * fetch_s
            if needs_fetch:
                fetched += 1
                fetching[each] = found[1]
                heapq.heappush(events, (begins_s, next(count), "fetched", each))
            waits.append(begins_s - found[0])
            heapq.heappush(events, (begins_s + draw_s, next(count), "drawn", each))
    return Played(100 * fetched / len(waits), sum(waits) / len(waits), len(queue))


@pytest.mark.parametrize(("fetch_s", "kept"), [(25.0, 4), (7.0, 8)])  # 2.5 GB and 0.7 GB, at 100 MB/s
def test_bound_has_files_fetched_less_often_and_pictures_wait_less(fetch_s: float, kept: int) -> None:
    free, bounded = (play(bounded=each, fetch_s=fetch_s, kept=kept, nodes=20, length_s=900) for each in (False, True))
    assert bounded.fetches < 0.6 * free.fetches
    assert bounded.wait_s < free.wait_s
