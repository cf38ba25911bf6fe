"""How many nodes a fleet should have. Each rule has a test beside it in which it must not act."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from giornata.domain.capacity import Demand, InstanceView, Offer, Use, could_take, place
from giornata.domain.scaling import FleetView, Plan, ScalingPolicy, plan_fleet
from giornata.domain.scaling_windows import parse_window

NOW = 1_790_000_000_000
OFFER = Offer(kinds=("train",), vram_bytes=24 * 2**30)
POLICY = ScalingPolicy(max_nodes=5, idle_to_zero_s=300, start_within_s=1800)


def ago(seconds: float) -> int:
    return NOW - round(seconds * 1000)


def node(name: str, use: Use = Use.IDLE, *, since_s: float = 0.0, **fields) -> InstanceView:
    fields = {"machine_id": f"machine-{name}", "offer": OFFER} | fields
    return InstanceView(id=name, use=use, since_ms=ago(since_s), **fields)


def fleet(*instances: InstanceView, jobs: int = 0, **fields) -> FleetView:
    demand = (Demand(kind="train", jobs=jobs),) if jobs else ()
    view = {"name": "gpu", "asked": len(instances), "offer": OFFER, "demand": demand, "reallocations_left": 10}
    return FleetView(**(view | {"instances": tuple(instances)} | fields))


def plan(view: FleetView, policy: ScalingPolicy = POLICY, now: int = NOW) -> Plan:
    return plan_fleet(view, policy, now)


def leaving(decided: Plan) -> list[str]:
    return [each.instance_id for each in decided.leaving]


def replaced(decided: Plan) -> list[str]:
    return [each.instance_id for each in decided.reallocate]


# growing


def test_nodes_are_asked_for_as_many_as_jobs_wait():
    assert plan(fleet(jobs=3)).desired == 3


def test_nothing_is_asked_for_when_nothing_waits():
    decided = plan(fleet())
    assert (decided.desired, decided.needed) == (0, False)


def test_jobs_that_idle_nodes_can_take_need_no_more():
    assert plan(fleet(node("a"), node("b"), jobs=2)).desired == 2


def test_nodes_at_work_do_not_count_for_what_waits():
    assert plan(fleet(node("a", Use.BUSY), jobs=1)).desired == 2


def test_those_on_their_way_count_listed_or_not():
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


def test_the_fewest_are_there_without_work():
    assert plan(fleet(), replace(POLICY, min_nodes=2)).desired == 2


def test_warm_spares_while_there_is_work_only():
    policy = replace(POLICY, warm_spares=1)
    assert plan(fleet(jobs=2), policy).desired == 3
    assert plan(fleet(), policy).desired == 0


def test_a_step_up_is_bounded():
    policy = replace(POLICY, max_nodes=50, most_up=4)
    assert plan(fleet(jobs=20), policy).desired == 4
    assert plan(fleet(jobs=3), policy).desired == 3


def test_after_a_change_there_is_a_pause():
    policy = replace(POLICY, pause_after_change_s=60)
    assert plan(fleet(jobs=2, changed_at_ms=ago(59)), policy).desired == 0
    assert plan(fleet(jobs=2, changed_at_ms=ago(60)), policy).desired == 2


def test_the_pause_does_not_keep_a_fleet_below_its_fewest():
    policy = replace(POLICY, pause_after_change_s=60, min_nodes=1)
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
    paused = plan(fleet(node("a"), demand=BANNED, changed_at_ms=NOW), replace(POLICY, pause_after_change_s=60))
    assert (paused.desired, replaced(paused)) == (1, []), "there will be"
    decided = plan(fleet(node("a"), demand=BANNED), replace(POLICY, max_nodes=1))
    assert replaced(decided) == ["a"]
    assert decided.desired == 1
    assert "machine-a" in decided.reallocate[0].reason


def test_nobody_is_replaced_while_another_node_may_take_the_job():
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


def test_nothing_is_replaced_where_it_would_come_back_on_the_same_machine():
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


# shrinking


def test_nodes_without_work_leave_after_a_while_longest_idle_first():
    view = fleet(node("a", since_s=299), node("b", since_s=301), node("c", since_s=302))
    assert leaving(plan(view)) == ["c", "b"]
    assert plan(view).desired == 3, "first they are told; they go when they hold nothing"


def test_who_was_told_before_and_holds_nothing_goes():
    view = fleet(node("a", leaving_since_ms=ago(5)), node("b", Use.BUSY))
    decided = plan(view)
    assert (decided.ending, decided.desired) == (("a",), 1)


def test_nobody_comes_in_the_turn_in_which_somebody_ends():
    """A provider that is asked for as many as it has ends nobody."""
    view = fleet(node("a", leaving_since_ms=ago(5)), node("b", Use.BUSY), jobs=2)
    decided = plan(view)
    assert (decided.ending, decided.desired) == (("a",), 1)
    assert plan(carried_out(view, decided)).desired == 3


def test_who_leaves_and_still_works_holds_nobody_back():
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
def test_others_stay_while_jobs_wait(idle):
    assert leaving(plan(fleet(idle, *(node(name, Use.BUSY) for name in "bcde"), jobs=9))) == []


def test_where_most_machines_are_not_fit_or_nothing_would_change_all_stay():
    sick = [node(name, since_s=900, sound=False) for name in "abc"]
    assert leaving(plan(fleet(*sick, node("d", Use.BUSY), node("e", Use.BUSY), jobs=9))) == []
    view = fleet(sick[0], *(node(name, Use.BUSY) for name in "bcde"), jobs=9)
    assert leaving(plan(replace(view, moves=False))) == [], "the same machine would come back"
    assert leaving(plan(view, replace(POLICY, min_nodes=5))) == []


def test_who_was_told_and_still_works_is_waited_for_within_its_time():
    view = fleet(node("a", Use.BUSY, leaving_since_ms=ago(900)))
    assert (plan(view).ending, plan(view).desired) == ((), 1)
    assert plan(fleet(node("a", Use.BUSY, leaving_since_ms=ago(901)))).ending == ("a",)


def test_who_was_told_just_now_does_not_go_yet():
    assert plan(fleet(node("a", leaving_since_ms=NOW))).ending == ()


def test_who_ends_already_is_not_counted_twice():
    view = fleet(node("a", leaving_since_ms=ago(5), ended=True), node("b", Use.BUSY), asked=1)
    assert (plan(view).ending, plan(view).desired) == ((), 1)


def test_a_working_node_is_never_taken_by_scale_in():
    assert plan(fleet(node("a", Use.BUSY, since_s=9999), node("b", since_s=9999))).leaving[0].instance_id == "b"
    assert leaving(plan(fleet(node("a", Use.BUSY, since_s=9999)))) == []


def test_only_a_lowered_policy_takes_working_nodes_after_all_the_others():
    view = fleet(node("a", Use.BUSY), node("b"), node("c", Use.BUSY), node("d", Use.NONE))
    assert sorted(leaving(plan(view, replace(POLICY, max_nodes=2)))) == ["b", "d"]
    decided = plan(view, replace(POLICY, max_nodes=1))
    assert sorted(leaving(decided)) == ["a", "b", "d"]
    assert "checkpoint" in decided.leaving[-1].reason


def test_a_step_down_is_bounded():
    view = fleet(*(node(name, since_s=999) for name in "abcde"))
    assert len(leaving(plan(view, replace(POLICY, most_down=2)))) == 2
    assert len(leaving(plan(view))) == 5


def test_the_fewest_and_the_needed_stay():
    view = fleet(*(node(name, since_s=999) for name in "abc"))
    assert leaving(plan(view, replace(POLICY, min_nodes=2))) == ["a"]
    assert len(leaving(plan(replace(view, demand=(Demand(kind="train", jobs=2),))))) == 1


def test_the_machine_that_is_not_fit_leaves_first():
    view = fleet(node("a", since_s=999), node("b", since_s=400, sound=False))
    assert leaving(plan(view, replace(POLICY, min_nodes=1))) == ["b"]


def test_starts_for_work_that_is_there_no_more_are_given_up_after_a_while():
    view = fleet(node("a", Use.NONE, since_s=600), needed_at_ms=ago(299))
    assert leaving(plan(view)) == []
    assert leaving(plan(replace(view, needed_at_ms=ago(301)))) == ["a"]


def test_what_never_came_is_not_asked_for_any_more():
    view = fleet(asked=2, needed_at_ms=ago(301), changed_at_ms=ago(400))
    assert plan(view).desired == 0
    assert plan(replace(view, needed_at_ms=ago(299))).desired == 2


def test_one_that_jobs_wait_for_stays_asked_for_although_others_are_idle():
    long_ago = {"needed_at_ms": ago(9999), "changed_at_ms": ago(9999)}
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


def test_what_never_came_stays_asked_for_beside_work_lest_the_provider_chooses():
    view = fleet(node("a", Use.BUSY), asked=3, needed_at_ms=ago(9999), changed_at_ms=ago(9999))
    assert plan(view).desired == 3
    assert plan(replace(view, instances=(node("a", Use.IDLE),))).desired == 1


def test_hours_of_the_week_have_their_own_bounds():
    window = parse_window("daily 00:00-24:00 UTC min=2 max=3")
    policy = replace(POLICY, windows=(window,))
    assert plan(fleet(), policy).desired == 2
    assert plan(fleet(jobs=9), policy).desired == 3
    other = replace(POLICY, windows=(parse_window("mon 00:00-00:01 UTC min=2"),))
    assert plan(fleet(), other).desired == 0


# properties

uses = st.sampled_from(Use)
views = st.builds(
    lambda states, more, jobs, needed_s, changed_s, banned, left: fleet(
        *(
            node(
                f"n{number}",
                use,
                since_s=since_s,
                sound=sound,
                leaving_since_ms=None if told_s is None else ago(told_s),
            )
            for number, (use, since_s, sound, told_s) in enumerate(states)
        ),
        asked=len(states) + more,
        demand=tuple(
            Demand(kind="train", jobs=count, banned_machines=frozenset(machines))
            for count, machines in ((jobs, ()), (banned, ("machine-n0", "machine-n1")))
            if count
        ),
        needed_at_ms=ago(needed_s),
        changed_at_ms=ago(changed_s),
        reallocations_left=left,
    ),
    st.lists(
        st.tuples(uses, st.integers(0, 4000), st.booleans(), st.one_of(st.none(), st.none(), st.integers(0, 2000))),
        max_size=8,
    ),
    st.integers(0, 3),
    st.integers(0, 12),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 2),
    st.integers(0, 3),
)
policies = st.builds(
    lambda fewest, more, spares, up, down, pause: ScalingPolicy(
        min_nodes=fewest,
        max_nodes=fewest + more,
        warm_spares=spares,
        most_up=up,
        most_down=down,
        pause_after_change_s=pause,
    ),
    st.integers(0, 4),
    st.integers(0, 8),
    st.integers(0, 2),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([0, 0, 100]),
)


@settings(max_examples=400, deadline=None)
@given(views, policies)
def test_bounds_and_steps_hold_whatever_is_believed(view, policy):
    decided = plan(view, policy)
    told = [each for each in view.instances if each.leaving_since_ms is not None]
    count = view.asked - len(told)
    stays_after = count - len(decided.leaving)
    assert decided.desired >= 0
    assert decided.desired <= max(policy.max_nodes, view.asked), "never above the most"
    assert stays_after >= min(policy.min_nodes, count), "never below the fewest"
    assert decided.desired - view.asked <= policy.most_up
    assert len(decided.leaving) <= policy.most_down
    assert view.asked - decided.desired <= len(decided.ending) + policy.most_down
    assert len(decided.reallocate) <= view.reallocations_left


@settings(max_examples=400, deadline=None)
@given(views, policies)
def test_no_working_node_is_taken_unless_fewer_are_allowed_than_work(view, policy):
    decided = plan(view, policy)
    by_id = {each.id: each for each in view.instances}
    staying = [each for each in view.instances if each.stays]
    working = [each for each in staying if each.use is Use.BUSY]
    taken = [each for each in leaving(decided) if by_id[each].use is Use.BUSY]
    assert not [each for each in replaced(decided) if by_id[each].use is Use.BUSY]
    told_long_ago = [each for each in decided.ending if by_id[each].use is Use.BUSY]
    assert all(NOW - by_id[each].leaving_since_ms > 900_000 for each in told_long_ago)
    unlisted = max(0, view.asked - len(view.instances))
    assert len(taken) <= max(0, len(working) + unlisted - policy.max_nodes)
    if taken:
        idle = [each.id for each in staying if each.use is not Use.BUSY]
        assert set(idle) <= set(leaving(decided)), "all the others go before"


def carried_out(view: FleetView, decided: Plan) -> FleetView:
    """What is believed once the plan is written down, and the provider has been asked."""
    told = set(leaving(decided))
    instances = tuple(
        replace(
            each,
            leaving_since_ms=NOW if each.id in told else each.leaving_since_ms,
            ended=each.ended or each.id in decided.ending,
            **(
                {"use": Use.NONE, "since_ms": NOW, "machine_id": None, "sound": True}
                if each.id in replaced(decided)
                else {}
            ),
        )
        for each in view.instances
    )
    left = view.reallocations_left - len(decided.reallocate)
    needed = NOW if decided.needed else view.needed_at_ms
    return replace(view, instances=instances, asked=decided.desired, reallocations_left=left, needed_at_ms=needed)


@settings(max_examples=400, deadline=None)
@given(views, policies)
def test_a_plan_that_was_carried_out_is_not_made_again(view, policy):
    # Where no limit of a step or of the provider held anything back.
    policy = replace(policy, most_up=99, most_down=99, pause_after_change_s=0)
    # With fewer of those to come than before, a job may be one that nobody left may take.
    assume(view.asked == len(view.instances) or view.asked <= policy.max_nodes)
    view = replace(view, reallocations_left=99)
    first = plan(view, policy)
    if first.ending:  # others may come in the turn after
        view = carried_out(view, first)
        first = plan(view, policy)
    settled = carried_out(view, first)
    again = plan(settled, policy)
    assert again.desired == settled.asked, (settled, again)
    assert (again.ending, again.reallocate) == ((), ())
    # Who could not take the jobs that others were called for has nothing to do from then on.
    assert not again.leaving or first.reallocate or first.desired > view.asked - len(first.ending)


@settings(max_examples=400, deadline=None)
@given(views, policies, st.integers(1, 5))
def test_more_jobs_never_mean_fewer_nodes(view, policy, more):
    demand = (*view.demand, Demand(kind="train", jobs=more, project_id="more"))
    few, many = plan(view, policy), plan(replace(view, demand=demand), policy)
    assert many.desired - len(many.leaving) >= few.desired - len(few.leaving)
    assert len(many.leaving) <= len(few.leaving)
