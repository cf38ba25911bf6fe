"""How many nodes a fleet should have. Each rule has a test beside it in which it must not act."""

from dataclasses import replace

import pytest
from tests.fixtures.scaling import NOW, OFFER, POLICY, ago, fleet, node, plan, replaced

from giornata.domain.fleets.capacity import Demand, Use, could_take, place

# growing


def test_nodes_are_asked_for_as_many_as_jobs_wait():
    assert plan(fleet(jobs=3)).desired == 3


def test_empty_queue_asks_for_no_node():
    decided = plan(fleet())
    assert (decided.desired, decided.needed) == (0, False)


def test_jobs_that_idle_nodes_can_take_need_no_more():
    assert plan(fleet(node("a"), node("b"), jobs=2)).desired == 2


def test_nodes_at_work_do_not_count_for_what_waits():
    assert plan(fleet(node("a", Use.BUSY), jobs=1)).desired == 2


def test_starting_nodes_count_as_capacity_whether_listed_or_just_asked_for():
    assert plan(fleet(node("a", Use.NONE), jobs=2, asked=2)).desired == 2
    assert plan(fleet(node("a", Use.NONE), jobs=3, asked=2)).desired == 3


def test_a_node_with_places_takes_several_jobs():
    wide = replace(OFFER, places=4)
    assert plan(fleet(jobs=9, offer=wide)).desired == 3
    assert plan(fleet(node("a", offer=wide), jobs=4, offer=wide)).desired == 1


def test_no_more_than_the_most_and_it_is_said():
    decided = plan(fleet(jobs=9))
    assert decided.desired == 5
    assert "9 nodes would be needed, 5 are the most allowed" in decided.reasons


def test_the_providers_own_limit_counts():
    assert plan(fleet(jobs=9, most_nodes=2)).desired == 2
    assert plan(fleet(jobs=1, most_nodes=2)).desired == 1


def test_provider_limit_below_asked_nodes_lets_no_busy_node_leave():
    busy = [node(name, Use.BUSY) for name in ("a", "b")]
    decided = plan(fleet(*busy, jobs=3, asked=5, most_nodes=2))
    assert (decided.desired, decided.leaving) == (2, ())


def test_provider_limit_reason_is_in_plan_only_when_the_limit_binds():
    reason = "the quota is 10, and others use 8"
    assert reason in plan(fleet(jobs=9, most_nodes=2, most_nodes_reason=reason)).reasons
    assert reason not in plan(fleet(jobs=1, most_nodes=2, most_nodes_reason=reason)).reasons
    assert reason not in plan(fleet(jobs=9, most_nodes=50, most_nodes_reason=reason)).reasons


def test_the_fewest_are_there_without_work():
    assert plan(fleet(), replace(POLICY, min_nodes=2)).desired == 2


def test_warm_spares_while_there_is_work_only():
    policy = replace(POLICY, warm_spares=1)
    assert plan(fleet(jobs=2), policy).desired == 3
    assert plan(fleet(), policy).desired == 0


def test_a_step_up_is_bounded():
    policy = replace(POLICY, max_nodes=50, max_scale_up=4)
    assert plan(fleet(jobs=20), policy).desired == 4
    assert plan(fleet(jobs=3), policy).desired == 3


def test_after_a_change_there_is_a_pause():
    policy = replace(POLICY, cooldown_s=60)
    assert plan(fleet(jobs=2, changed_at_ms=ago(59)), policy).desired == 0
    assert plan(fleet(jobs=2, changed_at_ms=ago(60)), policy).desired == 2


def test_the_pause_does_not_keep_a_fleet_below_its_fewest():
    policy = replace(POLICY, cooldown_s=60, min_nodes=1)
    assert plan(fleet(changed_at_ms=ago(1)), policy).desired == 1


def test_dear_nodes_are_not_asked_for_and_it_is_said():
    policy = replace(POLICY, max_price_micro_usd_per_hour=300_000)
    decided = plan(fleet(jobs=2, price_micro_usd_per_hour=300_001), policy)
    assert decided.desired == 0
    assert any("300000 is the most allowed" in each for each in decided.reasons)
    assert plan(fleet(jobs=2, price_micro_usd_per_hour=300_000), policy).desired == 2
    assert plan(fleet(jobs=2), policy).desired == 2


def test_dear_nodes_that_are_at_work_stay():
    policy = replace(POLICY, max_price_micro_usd_per_hour=1)
    decided = plan(fleet(node("a", Use.BUSY), price_micro_usd_per_hour=9), policy)
    assert (decided.desired, decided.leaving) == (1, ())


# who could take what


@pytest.mark.parametrize(
    ("demand", "could"),
    [
        (Demand(kind="train", jobs=1), True),
        (Demand(kind="generate", jobs=1), False),
        (Demand(kind="train", jobs=1, min_vram_bytes=24 * 2**30), True),
        (Demand(kind="train", jobs=1, min_vram_bytes=24 * 2**30 + 1), False),
        (Demand(kind="train", jobs=1, banned_machines=frozenset({"machine-a"})), False),
        (Demand(kind="train", jobs=1, banned_machines=frozenset({"machine-b"})), True),
        (Demand(kind="train", jobs=1, only_machine_id="machine-a"), True),
        (Demand(kind="train", jobs=1, only_machine_id="machine-b"), False),
    ],
)
def test_a_node_takes_what_it_may_and_can(demand, could):
    assert could_take(demand, OFFER, machine_id="machine-a") is could
    assert (place([demand], [node("a")]).left == []) is could


def test_a_node_of_a_project_takes_that_projects_jobs():
    own = replace(OFFER, project_id="p1")
    assert could_take(Demand(kind="train", jobs=1, project_id="p1"), own, machine_id=None)
    assert not could_take(Demand(kind="train", jobs=1, project_id="p2"), own, machine_id=None)
    assert could_take(Demand(kind="train", jobs=1, project_id="p2"), OFFER, machine_id=None)


def test_jobs_for_large_nodes_do_not_count_for_small_ones():
    large = (Demand(kind="train", jobs=1, min_vram_bytes=80 * 2**30),)
    decided = plan(fleet(demand=large))
    assert decided.desired == 0
    assert any("no node of this fleet could take them" in each for each in decided.reasons)


def test_the_particular_job_gets_the_only_node_that_it_may_have():
    banned = Demand(kind="train", jobs=1, banned_machines=frozenset({"machine-a"}))
    anybody = Demand(kind="train", jobs=1)
    assert place([anybody, banned], [node("a"), node("b")]).left == []


def test_machines_that_are_not_fit_are_no_capacity():
    assert plan(fleet(node("a", sound=False), jobs=1)).desired == 2
    assert plan(fleet(node("a", sound=True), jobs=1)).desired == 1


def test_a_canary_keeps_its_node_and_asks_for_no_other():
    canary = (Demand(kind="train", jobs=1, only_machine_id="machine-a"),)
    decided = plan(fleet(node("a", since_s=9999, sound=False), demand=canary))
    assert (decided.desired, decided.leaving, decided.reallocate) == (1, (), ())
    assert plan(fleet(demand=canary)).desired == 0


# D11: the last job, banned on the only node


BANNED = (Demand(kind="train", jobs=1, banned_machines=frozenset({"machine-a"})),)


def test_a_job_banned_on_the_only_node_gets_another_machine():
    roomy = plan(fleet(node("a"), demand=BANNED))
    assert (roomy.desired, replaced(roomy)) == (2, []), "there is room for another node"
    paused = plan(fleet(node("a"), demand=BANNED, changed_at_ms=NOW), replace(POLICY, cooldown_s=60))
    assert (paused.desired, replaced(paused)) == (1, []), "there will be"
    decided = plan(fleet(node("a"), demand=BANNED), replace(POLICY, max_nodes=1))
    assert replaced(decided) == ["a"]
    assert decided.desired == 1
    assert "machine-a" in decided.reallocate[0].reason


def test_node_banned_from_job_is_not_replaced_while_another_node_may_take_the_job():
    policy = replace(POLICY, max_nodes=2)
    for use in (Use.IDLE, Use.BUSY, Use.NONE):
        assert replaced(plan(fleet(node("a"), node("b", use), demand=BANNED), policy)) == [], use


def test_a_node_at_work_is_not_replaced_for_it():
    decided = plan(fleet(node("a", Use.BUSY), demand=BANNED), replace(POLICY, max_nodes=1))
    assert replaced(decided) == []
    assert any("once it is idle" in each for each in decided.reasons)


def test_a_node_that_has_other_jobs_to_take_is_not_replaced():
    demand = (*BANNED, Demand(kind="train", jobs=1))
    assert replaced(plan(fleet(node("a"), demand=demand), replace(POLICY, max_nodes=1))) == []


def test_the_providers_limit_of_replacements_holds():
    policy = replace(POLICY, max_nodes=1)
    assert replaced(plan(fleet(node("a"), demand=BANNED, reallocations_left=0), policy)) == []


def test_node_that_would_come_back_on_the_same_machine_is_not_replaced():
    decided = plan(fleet(node("a"), demand=BANNED, moves=False), replace(POLICY, max_nodes=1))
    assert replaced(decided) == []
    assert any("another machine is needed" in each for each in decided.reasons)


def test_the_one_that_comes_in_its_place_is_waited_for():
    fresh = node("a2", Use.NONE, machine_id=None)
    assert replaced(plan(fleet(fresh, demand=BANNED), replace(POLICY, max_nodes=1))) == []


# starts that take too long


def test_a_start_that_takes_too_long_is_replaced():
    decided = plan(fleet(node("a", Use.NONE, since_s=1801), jobs=1))
    assert replaced(decided) == ["a"]
    assert decided.desired == 1


def test_a_start_within_its_time_is_waited_for():
    assert replaced(plan(fleet(node("a", Use.NONE, since_s=1800), jobs=1))) == []


def test_a_start_that_takes_too_long_and_cannot_be_replaced_is_no_capacity():
    assert plan(fleet(node("a", Use.NONE, since_s=1801), jobs=1, reallocations_left=0)).desired == 2
