"""Several fleets under one queue: the cheapest that can deliver."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from giornata.domain.fleets.capacity import Demand, InstanceView, Offer, Use, jobs_in, with_deadlines
from giornata.domain.fleets.fleet_plan import FleetView, ScalingPolicy
from giornata.domain.fleets.fleet_share import Bidder, share_demand

NOW = 1_790_000_000_000
SMALL, LARGE = Offer(kinds=("train",), vram_bytes=24), Offer(kinds=("train", "generate"), vram_bytes=80)
POLICY = ScalingPolicy(max_nodes=4, expected_startup_s=600)


def bidder(
    name: str, price: int | None, *instances: InstanceView, policy: ScalingPolicy = POLICY, **fields
) -> Bidder:
    in_trouble = fields.pop("in_trouble", False)
    view = {"asked": len(instances), "offer": SMALL} | fields
    view = FleetView(name=name, price_micro_usd_per_hour=price, instances=instances, **view)
    return Bidder(view=view, policy=policy, in_trouble=in_trouble)


def jobs(count: int, **fields) -> Demand:
    return Demand(**({"kind": "train", "jobs": count} | fields))


def shares(demand, *bidders: Bidder) -> dict[str, int]:
    return {name: jobs_in(share) for name, share in share_demand(demand, bidders, NOW).items() if share}


def idle(name: str, offer: Offer = SMALL) -> InstanceView:
    return InstanceView(id=name, offer=offer, machine_id=name, use=Use.IDLE)


@pytest.mark.parametrize(
    ("instances", "fields", "brings"),
    [
        ([idle("a")], {}, True),  # one more
        ([idle("a")], {"policy": replace(POLICY, max_nodes=1)}, True),  # in the place of this one
        ([idle("a")], {"policy": replace(POLICY, max_nodes=1), "moves": False}, False),
        ([idle("a")], {"moves": False, "most_nodes": 1}, False),
        ([idle("a")], {"in_trouble": True}, False),
        ([idle("a")], {"offer": Offer(kinds=("generate",))}, False),
        ([idle("a")], {"moves": False, "policy": replace(POLICY, max_price_micro_usd_per_hour=1)}, False),
        (
            [InstanceView(id="b", offer=SMALL, since_ms=NOW)],
            {"policy": replace(POLICY, max_nodes=1), "moves": False},
            True,
        ),
        (
            [InstanceView(id="b", offer=SMALL, machine_id="a", since_ms=NOW)],
            {"policy": replace(POLICY, max_nodes=1), "moves": False},
            False,
        ),
    ],
)
def test_whether_a_fleet_can_bring_another_machine_for_a_job(instances, fields, brings):
    banned = jobs(1, banned_machines=frozenset({"a"}))
    assert bidder("gpu", 100, *instances, **fields).could_bring(banned, NOW) is brings


def test_the_cheapest_gets_the_work():
    assert shares([jobs(3)], bidder("dear", 900), bidder("cheap", 100)) == {"cheap": 3}


def test_a_fleet_without_a_price_comes_last():
    assert shares([jobs(3)], bidder("a", None), bidder("b", 900)) == {"b": 3}


def test_the_dearer_one_gets_what_is_too_much_for_the_cheap_one():
    assert shares([jobs(6)], bidder("dear", 900), bidder("cheap", 100)) == {"cheap": 4, "dear": 2}


def test_demand_beyond_all_fleets_goes_to_cheapest():
    assert shares([jobs(10)], bidder("dear", 900), bidder("cheap", 100)) == {"cheap": 6, "dear": 4}


@pytest.mark.parametrize(
    "why",
    [
        {"in_trouble": True},
        {"in_trouble": True, "asked": 1},
        {"most_nodes": 0},
        {"policy": replace(POLICY, max_price_micro_usd_per_hour=99)},
        {"policy": replace(POLICY, max_nodes=0)},
        {"asked": 1, "changed_at_ms": NOW - 5_401_000},
        {"offer": replace(SMALL, kinds=("generate",))},
    ],
)
def test_demand_that_cheap_fleet_cannot_deliver_goes_to_dearer_fleet(why):
    found = shares([jobs(2)], bidder("cheap", 100, **why), bidder("dear", 900))
    assert found == {"dear": 2}


@pytest.mark.parametrize(
    "why_not",
    [
        {"policy": replace(POLICY, max_price_micro_usd_per_hour=100)},
        {"asked": 1, "changed_at_ms": NOW - 5_399_000},
    ],
)
def test_demand_stays_with_cheap_fleet_at_its_price_limit_and_while_its_nodes_may_still_come(why_not):
    assert shares([jobs(2)], bidder("cheap", 100, **why_not), bidder("dear", 900)) == {"cheap": 2}


def test_nodes_that_idle_anyway_take_the_work_before_a_cheaper_one_is_called():
    assert shares([jobs(2)], bidder("dear", 900, idle("d")), bidder("cheap", 100)) == {"dear": 1, "cheap": 1}


def test_a_deadline_that_only_the_dearer_fleet_can_meet_is_for_that():
    soon = jobs(1, deadline_at_ms=NOW + 300_000)
    late = jobs(1, deadline_at_ms=NOW + 700_000)
    quick = replace(POLICY, expected_startup_s=60)
    fleets = bidder("cheap", 100), bidder("dear", 900, policy=quick)
    assert shares([soon], *fleets) == {"dear": 1}
    assert shares([late], *fleets) == {"cheap": 1}


def coming(name: str, since_s: float) -> InstanceView:
    return InstanceView(id=name, offer=SMALL, machine_id=name, asked_ms=NOW - round(since_s * 1000), since_ms=NOW)


@pytest.mark.parametrize(("since_s", "whose"), [(0, "dear"), (299, "dear"), (300, "cheap"), (3000, "cheap")])
def test_a_node_on_its_way_counts_for_a_deadline_that_it_is_there_for(since_s, whose):
    soon = jobs(1, deadline_at_ms=NOW + 300_000)
    fleets = (
        bidder("cheap", 100, coming("c", since_s)),
        bidder("dear", 900, policy=replace(POLICY, expected_startup_s=60)),
    )
    assert shares([soon], *fleets) == {whose: 1}
    assert shares([jobs(1)], *fleets) == {"cheap": 1}, "without a deadline it counts anyway"


def test_a_node_on_its_way_counts_for_a_deadline_that_nobody_else_meets_either():
    soon = jobs(1, deadline_at_ms=NOW + 300_000)
    full = replace(POLICY, max_nodes=1)
    assert shares([soon], bidder("cheap", 100, coming("c", 0), policy=full), bidder("dear", 900)) == {"cheap": 1}


def test_large_jobs_are_for_large_nodes_however_dear():
    found = shares([jobs(1, min_vram_bytes=48), jobs(1)], bidder("s", 100), bidder("l", 900, offer=LARGE))
    assert found == {"l": 1, "s": 1}


def test_demand_that_no_fleet_can_serve_is_in_no_share():
    assert shares([jobs(1, kind="x-own")], bidder("s", 100)) == {}


groups = st.lists(
    st.builds(
        lambda count, kind, vram, deadline: jobs(count, kind=kind, min_vram_bytes=vram, deadline_at_ms=deadline),
        st.integers(1, 9),
        st.sampled_from(["train", "generate"]),
        st.sampled_from([0, 24, 80]),
        st.sampled_from([None, NOW + 1, NOW + 10_000_000]),
    ),
    max_size=4,
    unique_by=lambda each: (each.kind, each.min_vram_bytes, each.deadline_at_ms),
)


@settings(max_examples=300, deadline=None)
@given(groups, st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_every_job_that_somebody_could_take_is_in_just_one_share(demand, small, large, trouble):
    fleets = [
        bidder("s", 100, *(idle(f"s{number}") for number in range(small)), in_trouble=trouble),
        bidder("l", 900, *(idle(f"l{number}", LARGE) for number in range(large)), offer=LARGE),
    ]
    assert sum(shares(demand, *fleets).values()) == jobs_in(demand), "the large ones can take everything"


def test_jobs_with_deadlines_are_groups_of_their_own():
    soon = jobs(2, deadline_at_ms=NOW)
    assert with_deadlines([jobs(5)], [soon]) == (soon, jobs(3))
    assert with_deadlines([jobs(5)], []) == (jobs(5),)


def test_no_job_is_counted_twice_for_its_deadline():
    banned = jobs(1, banned_machines=frozenset({"m"}))
    soon = jobs(2, deadline_at_ms=NOW)
    assert with_deadlines([jobs(1), banned], [soon]) == (replace(soon, jobs=1), banned)
