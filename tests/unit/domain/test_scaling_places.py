"""Places that are free beside jobs at work, for jobs that may join them; and what a plan says in words."""

from dataclasses import replace

import pytest
from tests.fixtures.scaling import NOW, OFFER, POLICY, WIDE, fleet, leaving, node, plan

from giornata.domain.fleets.capacity import Demand, InstanceView, Use

# free places beside jobs at work


def shared(name: str, *, taken: int = 1, key: str | None = "same", **fields) -> InstanceView:
    return node(name, Use.BUSY, taken=taken, joint_key=key, **({"offer": WIDE} | fields))


def joining(jobs: int, key: str = "same") -> Demand:
    return Demand(kind="train", jobs=jobs, joint_key=key)


def test_places_beside_jobs_that_others_may_join_are_capacity():
    decided = plan(fleet(shared("a"), demand=(joining(3),), offer=WIDE))
    assert decided.desired == 1
    assert "3 jobs wait for a node that is there or comes" in decided.reasons
    assert plan(fleet(shared("a"), demand=(joining(4),), offer=WIDE)).desired == 2


@pytest.mark.parametrize(
    "busy",
    [
        shared("a", taken=4),
        shared("a", key=None),
        shared("a", key="another"),
        shared("a", offer=OFFER),
        shared("a", sound=False),
        shared("a", leaving_since_ms=NOW - 1000),
    ],
    ids=["full", "alone", "of another key", "one place", "not fit", "leaving"],
)
def test_places_that_nobody_could_have_are_none(busy):
    decided = plan(fleet(busy, demand=(joining(1),), offer=WIDE))
    assert decided.desired == 2 or busy.leaving_since_ms, decided.reasons
    assert "1 job waits" in decided.reasons


def test_plan_reasons_count_busy_nodes_and_waiting_jobs():
    assert plan(fleet()).reasons == ("nothing waits",)
    assert plan(fleet(node("a", Use.BUSY))).reasons == ("1 at work", "nothing waits")
    assert plan(fleet(jobs=1)).reasons == ("1 job waits", "1 more")
    assert plan(fleet(node("a"), jobs=1)).reasons == ("1 job waits for a node that is there or comes",)
    assert plan(fleet(node("a"), jobs=3)).reasons == ("3 jobs wait, 1 for nodes that are there or come", "2 more")


def test_a_job_that_may_join_may_also_have_a_node_of_its_own():
    assert plan(fleet(node("a", offer=WIDE), demand=(joining(4),), offer=WIDE)).desired == 1
    assert plan(fleet(demand=(joining(4),), offer=WIDE)).desired == 1


def test_a_place_beside_others_is_taken_before_a_node_is_kept_for_it():
    idle = node("b", offer=WIDE, since_s=301)
    assert leaving(plan(fleet(shared("a"), idle, demand=(joining(1),), offer=WIDE))) == ["b"]
    assert leaving(plan(fleet(shared("a", taken=4), idle, demand=(joining(1),), offer=WIDE))) == []


def test_a_node_at_work_that_takes_more_is_one_node():
    decided = plan(fleet(shared("a"), demand=(joining(1),), offer=WIDE), replace(POLICY, warm_spares=1))
    assert decided.desired == 2
