"""Which nodes go, and which never do. Each rule has a test beside it in which it must not act."""

from dataclasses import replace

import pytest
from tests.fixtures.scaling import NOW, POLICY, ago, carried_out, fleet, leaving, node, plan, replaced

from giornata.domain.fleets.capacity import Demand, Use
from giornata.domain.fleets.scaling_windows import parse_window

KEEPS = replace(POLICY, surplus_idle_s=300)


def test_nodes_without_work_leave_after_a_while_longest_idle_first():
    view = fleet(node("a", since_s=299), node("b", since_s=301), node("c", since_s=302))
    assert leaving(plan(view, KEEPS)) == ["c", "b"]
    assert plan(view, KEEPS).desired == 3, "first they are told; they go when they hold nothing"


def test_at_the_end_of_a_queue_idle_nodes_leave_at_once_but_the_last():
    view = fleet(node("a", since_s=1), node("b", since_s=2), node("c", since_s=0), node("d", Use.BUSY))
    assert leaving(plan(view)) == ["b", "a"]
    assert leaving(plan(replace(view, instances=(node("c", since_s=299), *view.instances[3:]), asked=2))) == []
    assert leaving(plan(replace(view, instances=(node("c", since_s=300), *view.instances[3:]), asked=2))) == ["c"]
    assert leaving(plan(view, KEEPS)) == []


def test_at_the_end_of_a_queue_nodes_that_start_are_called_off_although_others_work():
    starting = [node(name, Use.NONE, since_s=600) for name in "abc"]
    view = fleet(*starting, node("d", Use.BUSY), node("e"), awaited_at_ms=ago(5))
    assert sorted(leaving(plan(view))) == ["a", "b", "c"]
    alone = fleet(*starting, node("d", Use.BUSY), awaited_at_ms=ago(5))
    assert len(leaving(plan(alone))) == 2, "one is kept for what may come"
    assert len(leaving(plan(replace(alone, awaited_at_ms=ago(300))))) == 3


@pytest.mark.parametrize(
    "waits",
    [
        Demand(kind="train", jobs=1),
        Demand(kind="train", jobs=1, only_machine_id="machine-d"),
        Demand(kind="train", jobs=1, banned_machines=frozenset({"machine-a", "machine-b"})),
    ],
    ids=["for-a-node-that-is-there", "for-a-node-at-work", "for-another-node"],
)
def test_while_a_job_waits_idle_nodes_are_kept_for_a_while(waits):
    view = fleet(node("a"), node("b"), node("d", Use.BUSY), demand=(waits,))
    assert leaving(plan(view)) == []


def test_a_job_that_no_node_of_the_fleet_could_take_keeps_no_node():
    view = fleet(node("a"), node("b"), demand=(Demand(kind="x-other", jobs=3),))
    assert leaving(plan(view)) == ["a"]


def test_spares_and_the_fewest_are_kept_and_none_besides():
    view = fleet(node("a"), node("b"), node("c"), node("d", Use.BUSY))
    assert leaving(plan(view, replace(POLICY, warm_spares=1))) == ["a", "b"]
    assert leaving(plan(view, replace(POLICY, min_nodes=3))) == ["a"]


def test_starting_nodes_that_no_job_waits_for_leave_while_other_nodes_are_busy():
    """Four were asked for, and of eight jobs seven were canceled while they started."""
    starting = [node(name, Use.NONE, since_s=900) for name in "abcd"]
    view = fleet(*starting, node("e", Use.BUSY), jobs=1, awaited_at_ms=ago(299))
    assert leaving(plan(view)) == []
    gone = leaving(plan(replace(view, awaited_at_ms=ago(300))))
    assert len(gone) == 3, "one job waits"
    assert "e" not in gone


def test_jobs_that_wait_for_all_that_start_say_so():
    starting = [node(name, Use.NONE, since_s=900) for name in "ab"]
    assert plan(fleet(*starting, jobs=2)).awaited
    assert plan(fleet(*starting, jobs=9)).awaited
    assert plan(fleet(node("c", Use.BUSY))).awaited
    assert not plan(fleet(*starting, jobs=1)).awaited
    assert not plan(fleet(*starting, node("c", Use.BUSY))).awaited
    assert not plan(fleet(node("a", Use.NONE, since_s=1801), node("c", Use.BUSY), reallocations_left=0)).awaited
    assert plan(fleet(*starting, jobs=1), replace(POLICY, warm_spares=1)).awaited


def test_stuck_starting_node_is_not_replaced_unless_jobs_or_policy_need_it():
    policy = replace(KEEPS, max_nodes=20)
    stuck = [node(name, Use.NONE, since_s=1801) for name in "abc"]
    view = fleet(*stuck, *(node(name, Use.BUSY) for name in "defg"), awaited_at_ms=ago(299))
    assert replaced(plan(view, policy)) == []
    assert replaced(plan(replace(view, demand=(Demand(kind="train", jobs=1),)), policy)) == ["a"]
    assert replaced(plan(replace(view, demand=(Demand(kind="train", jobs=9),)), policy)) == ["a", "b", "c"]
    assert replaced(plan(view, replace(policy, min_nodes=6))) == ["a", "b"]
    assert replaced(plan(view, replace(policy, warm_spares=1))) == ["a"]
    assert replaced(plan(replace(view, asked=8, demand=(Demand(kind="train", jobs=1),)), policy)) == []


def test_stuck_starting_node_is_replaced_when_idle_nodes_are_banned_from_the_job():
    banned = Demand(kind="train", jobs=1, banned_machines=frozenset({"machine-b"}))
    view = fleet(node("a", Use.NONE, since_s=1801), node("b"), demand=(banned,))
    assert replaced(plan(view)) == ["a"]


def test_leaving_node_without_job_is_ended():
    view = fleet(node("a", leaving_since_ms=ago(5)), node("b", Use.BUSY))
    decided = plan(view)
    assert (decided.ending, decided.desired) == (("a",), 1)


def test_desired_count_falls_below_listed_nodes_when_fewer_came_than_asked_for():
    """Asked for one fewer than before, a provider that is short would keep the one that is to end."""
    view = fleet(node("a", leaving_since_ms=ago(5)), node("b", Use.BUSY), asked=4, awaited_at_ms=ago(9))
    decided = plan(view)
    assert (decided.ending, decided.desired) == (("a",), 1)
    assert plan(view, replace(POLICY, min_nodes=3)).desired == 3, "the fewest allowed stay asked for"
    assert plan(replace(view, demand=(Demand(kind="train", jobs=2),))).desired == 3, "jobs wait for those that come"
    step = replace(POLICY, max_scale_down=1)
    assert plan(view, step).desired == 2, "beside who ends, in steps that are allowed"
    assert plan(replace(view, asked=2), step).desired == 1, "until the provider hears of it"


def test_scale_out_waits_for_next_plan_while_an_instance_ends():
    """A provider that is asked for as many as it has ends nobody."""
    view = fleet(node("a", leaving_since_ms=ago(5)), node("b", Use.BUSY), jobs=2)
    decided = plan(view)
    assert (decided.ending, decided.desired) == (("a",), 1)
    assert plan(carried_out(view, decided)).desired == 3


def test_busy_leaving_node_does_not_hold_back_scale_out():
    assert plan(fleet(node("a", Use.BUSY, leaving_since_ms=ago(5)), node("b", Use.BUSY), jobs=2)).desired == 4


def test_idle_on_a_machine_that_is_not_fit_it_leaves_though_jobs_wait():
    sick = node("a", since_s=300, sound=False)
    view = fleet(sick, *(node(name, Use.BUSY) for name in "bcde"), jobs=9)
    decided = plan(view)
    assert leaving(decided) == ["a"]
    assert "not fit" in decided.leaving[0].reason
    told = carried_out(view, decided)
    ended = plan(told, now=NOW + 5000)
    assert (ended.ending, ended.desired) == (("a",), 4)
    gone = replace(told, asked=4, instances=tuple(each for each in told.instances if each.id != "a"))
    assert plan(gone).desired == 5, "another comes for it"


@pytest.mark.parametrize(
    "idle",
    [
        node("a", since_s=9999),
        node("a", since_s=299, sound=False),
        node("a", Use.BUSY, since_s=9999, sound=False),
        node("a", Use.NONE, since_s=900, sound=False),
    ],
    ids=["fit", "not-for-long", "at-work", "not-heard-of"],
)
def test_nodes_stay_while_jobs_wait_unless_idle_and_unfit_for_a_while(idle):
    assert leaving(plan(fleet(idle, *(node(name, Use.BUSY) for name in "bcde"), jobs=9))) == []


def test_unfit_nodes_stay_when_most_are_unfit_or_replacement_would_change_nothing():
    sick = [node(name, since_s=900, sound=False) for name in "abc"]
    assert leaving(plan(fleet(*sick, node("d", Use.BUSY), node("e", Use.BUSY), jobs=9))) == []
    view = fleet(sick[0], *(node(name, Use.BUSY) for name in "bcde"), jobs=9)
    assert leaving(plan(replace(view, moves=False))) == [], "the same machine would come back"
    assert leaving(plan(view, replace(POLICY, min_nodes=5))) == []


def test_leaving_busy_node_is_ended_only_after_its_drain_time():
    view = fleet(node("a", Use.BUSY, leaving_since_ms=ago(900)))
    assert (plan(view).ending, plan(view).desired) == ((), 1)
    assert plan(fleet(node("a", Use.BUSY, leaving_since_ms=ago(901)))).ending == ("a",)


def test_node_told_to_leave_just_now_is_not_ended_yet():
    assert plan(fleet(node("a", leaving_since_ms=NOW))).ending == ()


def test_ended_instance_is_not_subtracted_twice_from_desired_count():
    view = fleet(node("a", leaving_since_ms=ago(5), ended=True), node("b", Use.BUSY), asked=1)
    assert (plan(view).ending, plan(view).desired) == ((), 1)


def test_a_working_node_is_never_taken_by_scale_in():
    assert plan(fleet(node("a", Use.BUSY, since_s=9999), node("b", since_s=9999))).leaving[0].instance_id == "b"
    assert leaving(plan(fleet(node("a", Use.BUSY, since_s=9999)))) == []


def test_lowered_max_nodes_takes_busy_nodes_last():
    view = fleet(node("a", Use.BUSY), node("b"), node("c", Use.BUSY), node("d", Use.NONE))
    assert sorted(leaving(plan(view, replace(POLICY, max_nodes=2)))) == ["b", "d"]
    decided = plan(view, replace(POLICY, max_nodes=1))
    assert sorted(leaving(decided)) == ["a", "b", "d"]
    assert "checkpoint" in decided.leaving[-1].reason


def test_a_step_down_is_bounded():
    view = fleet(*(node(name, since_s=999) for name in "abcde"))
    assert len(leaving(plan(view, replace(POLICY, max_scale_down=2)))) == 2
    assert len(leaving(plan(view))) == 5


def test_the_fewest_and_the_needed_stay():
    view = fleet(*(node(name, since_s=999) for name in "abc"))
    assert leaving(plan(view, replace(POLICY, min_nodes=2))) == ["a"]
    assert len(leaving(plan(replace(view, demand=(Demand(kind="train", jobs=2),))))) == 1


def test_the_machine_that_is_not_fit_leaves_first():
    view = fleet(node("a", since_s=999), node("b", since_s=400, sound=False))
    assert leaving(plan(view, replace(POLICY, min_nodes=1))) == ["b"]


def test_starts_for_work_that_is_there_no_more_are_given_up_after_a_while():
    view = fleet(node("a", Use.NONE, since_s=600), awaited_at_ms=ago(299))
    assert leaving(plan(view)) == []
    assert leaving(plan(replace(view, awaited_at_ms=ago(301)))) == ["a"]


def test_nodes_that_never_came_are_no_longer_asked_for_after_a_while():
    view = fleet(asked=2, awaited_at_ms=ago(301), changed_at_ms=ago(400))
    assert plan(view).desired == 0
    assert plan(replace(view, awaited_at_ms=ago(299))).desired == 1, "nothing waits: one is enough for what may come"
    assert plan(replace(view, awaited_at_ms=ago(299)), replace(POLICY, surplus_idle_s=300)).desired == 2


def test_missing_nodes_stay_asked_for_when_idle_nodes_cannot_take_the_waiting_job():
    long_ago = {"awaited_at_ms": ago(9999), "changed_at_ms": ago(9999)}
    unfit = fleet(node("a", Use.NONE, sound=False), asked=2, jobs=1, **long_ago)
    assert plan(unfit).desired == 2
    assert plan(replace(unfit, demand=())).desired == 1
    banned = Demand(kind="train", jobs=1, banned_machines=frozenset({"machine-a"}))
    assert plan(fleet(node("a"), asked=2, demand=(banned,), **long_ago)).desired == 2
    assert plan(fleet(node("a"), asked=2, jobs=1, **long_ago)).desired == 1


def test_a_spare_is_not_given_up_because_a_machine_that_is_not_fit_is_still_there():
    policy = replace(POLICY, warm_spares=1)
    view = fleet(node("a", sound=False), node("b"), node("c"), jobs=1)
    assert leaving(plan(view, policy)) == []
    assert leaving(
        plan(replace(view, instances=(node("a", sound=False, since_s=301), *view.instances[1:])), policy)
    ) == ["a"]


def test_missing_nodes_stay_asked_for_beside_busy_node_that_provider_might_end():
    view = fleet(node("a", Use.BUSY), asked=3, awaited_at_ms=ago(9999), changed_at_ms=ago(9999))
    assert plan(view).desired == 3
    assert plan(replace(view, instances=(node("a", Use.IDLE),))).desired == 1


def test_hours_of_the_week_have_their_own_bounds():
    window = parse_window("daily 00:00-24:00 UTC min=2 max=3")
    policy = replace(POLICY, windows=(window,))
    assert plan(fleet(), policy).desired == 2
    assert plan(fleet(jobs=9), policy).desired == 3
    other = replace(POLICY, windows=(parse_window("mon 00:00-00:01 UTC min=2"),))
    assert plan(fleet(), other).desired == 0
