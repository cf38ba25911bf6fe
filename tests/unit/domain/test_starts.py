"""Nodes that do not come: when they are no capacity, who is replaced, and when a fleet stops trying."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.scaling import POLICY, ago, fleet, leaving, node, plan, replaced

from giornata.domain.fleets.capacity import Demand, Use
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.domain.fleets.fleet_share import Bidder, share_demand
from giornata.domain.fleets.starts import NodeStart, Starts, after_restarts, failed_in_a_row

NOW = ago(0)
WIDE_POLICY = ScalingPolicy(max_nodes=20)


def failing(name: str, **fields):
    return node(name, Use.NONE, fails_to_start=True, billed=True, **fields)


def late(name: str, **fields):
    return node(name, Use.NONE, billed=True, since_s=700, **fields)


def test_a_node_that_fails_to_start_is_no_capacity_and_the_job_gets_another_one():
    assert plan(fleet(node("a", Use.NONE), jobs=1, moves=False)).desired == 1
    decided = plan(fleet(failing("a"), jobs=1, moves=False))
    assert (decided.desired, replaced(decided), leaving(decided)) == (2, [], [])
    assert "1 without a node that could ask for work count for nothing" in decided.reasons


def test_node_that_fails_to_start_is_replaced_at_once_when_it_moves_to_another_machine():
    decided = plan(fleet(failing("a"), jobs=1))
    assert (decided.desired, replaced(decided)) == (1, ["a"])
    assert decided.reallocate[0].reason == "its node ends again and again before it asks for work"


def test_a_node_that_is_heard_of_is_capacity_however_its_earlier_starts_went():
    for use in (Use.IDLE, Use.BUSY):
        decided = plan(fleet(node("a", use, fails_to_start=True), jobs=int(use is Use.IDLE)))
        assert (decided.desired, replaced(decided)) == (1, [])


def test_a_start_that_is_billed_is_waited_for_ten_minutes_and_a_free_one_for_ninety():
    policy = ScalingPolicy(max_nodes=5)
    for billed, within_s in ((True, 600), (False, 5400)):
        instance = node("a", Use.NONE, since_s=within_s, billed=billed)
        assert replaced(plan(fleet(instance, jobs=1), policy)) == []
        longer = replace(instance, since_ms=ago(within_s + 1))
        assert replaced(plan(fleet(longer, jobs=1), policy)) == ["a"]


def test_replacing_keeps_to_the_reapers_share():
    instances = [late(f"late-{number}") for number in range(4)] + [node(f"n-{number}") for number in range(8)]
    for share, count in ((0, 0), (1, 1), (3, 3), (None, 4)):
        assert len(replaced(plan(fleet(*instances, jobs=12, share_left=share), WIDE_POLICY))) == count


@pytest.mark.parametrize("lost", [late, failing])
def test_fleet_stops_replacement_and_scale_out_when_most_nodes_never_come(lost):
    instances = [lost(f"lost-{number}") for number in range(3)]
    view = fleet(*instances, jobs=9, changed_at_ms=ago(1000))
    decided = plan(view, WIDE_POLICY)
    assert (decided.desired, replaced(decided)) == (3, [])
    assert decided.stopped == "none of 3 nodes ever came"
    assert any("none of 3 nodes ever came" in reason for reason in decided.reasons)
    two = plan(fleet(*instances[:2], jobs=9, changed_at_ms=ago(1000)), WIDE_POLICY)
    assert two.stopped == "", "two may be chance"
    assert two.desired > 2


def test_some_that_came_say_that_machines_are_the_cause_unless_most_did_not():
    lost = [failing(f"lost-{number}") for number in range(4)]
    came = [node(f"came-{number}", Use.BUSY) for number in range(4)]
    assert plan(fleet(*lost, *came, jobs=9), WIDE_POLICY).stopped == ""
    assert plan(fleet(*lost, *came[:3], jobs=9), WIDE_POLICY).stopped == "4 of 7 nodes never came"


def test_nodes_that_came_once_are_not_said_to_have_never_come():
    lost = [failing(f"lost-{number}", came=number == 0) for number in range(3)]
    assert plan(fleet(*lost, jobs=9), WIDE_POLICY).stopped == "none of 3 nodes comes any more"
    assert plan(fleet(*lost, node("a"), jobs=9), WIDE_POLICY).stopped == "3 of 4 nodes do not come"


def test_a_fleet_that_stopped_tries_one_node_each_hour():
    instances = [failing(f"lost-{number}") for number in range(3)]
    early = fleet(*instances, jobs=9, moves=False, changed_at_ms=ago(3599))
    assert plan(early, WIDE_POLICY).desired == 3
    assert plan(replace(early, changed_at_ms=ago(3600)), WIDE_POLICY).desired == 4
    full = replace(early, changed_at_ms=ago(3600), moves=True)
    policy = ScalingPolicy(max_nodes=3)
    assert len(replaced(plan(full, policy))) == 1
    assert replaced(plan(replace(full, changed_at_ms=ago(3599)), policy)) == []


def test_the_work_of_a_fleet_that_stopped_is_for_the_next_one():
    lost = fleet(*(failing(f"lost-{number}") for number in range(3)), price_micro_usd_per_hour=1)
    dear = replace(fleet(price_micro_usd_per_hour=9), name="dear")
    bidders = [Bidder(view=each, policy=POLICY) for each in (lost, dear)]
    demand = [Demand(kind="train", jobs=1)]
    assert set(share_demand(demand, bidders, NOW)) - {"gpu"} == {"dear"}
    assert share_demand(demand, bidders, NOW)["dear"] == tuple(demand)
    one_lost = replace(lost, instances=lost.instances[:1])
    assert share_demand(demand, [replace(bidders[0], view=one_lost), bidders[1]], NOW)["gpu"] == tuple(demand)


# counting


def counted(*steps: tuple[int, bool]) -> list[int]:
    """How many starts had failed in a row after each step: restarts so far, and whether the process had asked."""
    found, starts = [], Starts()
    for at_ms, (restarts, had_asked) in enumerate(steps):
        starts = after_restarts(starts, restarts=restarts, had_asked=had_asked, at_ms=at_ms)
        found.append(starts.failed)
    return found


def test_restarts_before_a_node_asks_for_work_are_failed_starts():
    assert counted((0, False), (1, False), (2, False), (2, False)) == [0, 1, 2, 2]


def test_a_node_that_asked_for_work_ends_the_row_and_its_own_end_is_no_failed_start():
    assert counted((2, False), (2, True), (3, True), (4, False)) == [2, 0, 0, 1]


def test_two_restarts_of_node_that_asked_for_work_count_as_one_failed_start():
    assert counted((2, True)) == [1]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_never_more_starts_failed_than_there_were_restarts(steps):
    totals = itertools.accumulate(more for more, _ in steps)
    found = counted(*((total, had_asked) for total, (_, had_asked) in zip(totals, steps, strict=True)))
    assert all(failed <= sum(more for more, _ in steps) for failed in found)


@pytest.mark.parametrize(
    ("starts", "failed"),
    [
        ([], 0),
        (["under_way"], 0),
        (["failed"], 1),
        (["under_way", "under_way"], 1),
        (["failed", "failed"], 2),
        (["failed", "under_way", "under_way"], 2),
        (["failed", "failed", ""], 0),
        (["failed", "", "under_way"], 0),
        (["", "failed", "under_way"], 1),
    ],
)
def test_processes_that_came_one_after_the_other_are_counted_since_the_last_that_asked(starts, failed):
    assert failed_in_a_row([NodeStart(each) for each in starts]) == failed
