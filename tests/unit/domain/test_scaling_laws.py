"""What holds of every plan, whatever is believed of a fleet."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.fixtures.scaling import NOW, WIDE, ago, carried_out, fleet, leaving, node, plan, replaced

from giornata.domain.fleets.capacity import Demand, Use
from giornata.domain.fleets.fleet_plan import ScalingPolicy

uses = st.sampled_from(Use)
views = st.builds(
    lambda states, more, jobs, needed_s, changed_s, banned, left, joint: fleet(
        *(
            node(
                f"n{number}",
                use,
                since_s=since_s,
                sound=sound,
                leaving_since_ms=None if told_s is None else ago(told_s),
                **({"offer": WIDE, "taken": taken, "joint_key": "same"} if taken and use is Use.BUSY else {}),
            )
            for number, (use, since_s, sound, told_s, taken) in enumerate(states)
        ),
        asked=len(states) + more,
        demand=tuple(
            Demand(kind="train", jobs=count, banned_machines=frozenset(machines))
            for count, machines in ((jobs, ()), (banned, ("machine-n0", "machine-n1")))
            if count
        )
        + ((Demand(kind="train", jobs=joint, joint_key="same"),) if joint else ()),
        awaited_at_ms=ago(needed_s),
        changed_at_ms=ago(changed_s),
        reallocations_left=left,
    ),
    st.lists(
        st.tuples(
            *(uses, st.integers(0, 4000), st.booleans()),
            *(st.one_of(st.none(), st.none(), st.integers(0, 2000)), st.integers(0, 4)),
        ),
        max_size=8,
    ),
    st.integers(0, 3),
    st.integers(0, 12),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(0, 6),
)
policies = st.builds(
    lambda fewest, more, spares, up, down, pause: ScalingPolicy(
        min_nodes=fewest,
        max_nodes=fewest + more,
        warm_spares=spares,
        max_scale_up=up,
        max_scale_down=down,
        cooldown_s=pause,
    ),
    st.integers(0, 4),
    st.integers(0, 8),
    st.integers(0, 2),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([0, 0, 100]),
)


@settings(max_examples=200, deadline=None)
@given(views, policies)
def test_bounds_and_steps_hold_whatever_is_believed(view, policy):
    decided = plan(view, policy)
    told = [each for each in view.instances if each.leaving_since_ms is not None]
    count = view.asked - len(told)
    stays_after = count - len(decided.leaving)
    assert decided.desired >= 0
    assert decided.desired <= max(policy.max_nodes, view.asked), "never above the most"
    assert stays_after >= min(policy.min_nodes, count), "never below the fewest"
    assert decided.desired - view.asked <= policy.max_scale_up
    assert len(decided.leaving) <= policy.max_scale_down
    assert view.asked - decided.desired <= len(decided.ending) + policy.max_scale_down
    assert len(decided.reallocate) <= view.reallocations_left
    if not view.demand and not policy.min_nodes and not policy.warm_spares:
        assert decided.reallocate == (), "what no job waits for is never replaced"


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=200, deadline=None)
@given(views, policies)
def test_a_plan_that_was_carried_out_is_not_made_again(view, policy):
    # Where no limit of a step or of the provider held anything back.
    policy = replace(policy, max_scale_up=99, max_scale_down=99, cooldown_s=0)
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
    # Who could not take the jobs that others were called for has nothing to do from then on; and of those on machines
    # that are not fit one goes after the other.
    unfit = {each.id for each in view.instances if not each.sound} if first.leaving else set()
    leaving = {step.instance_id for step in again.leaving} - unfit
    assert not leaving or first.reallocate or first.desired > view.asked - len(first.ending)


@settings(max_examples=200, deadline=None)
@given(views, policies, st.integers(1, 5))
def test_more_jobs_never_mean_fewer_nodes(view, policy, more):
    demand = (*view.demand, Demand(kind="train", jobs=more, project_id="more"))
    few, many = plan(view, policy), plan(replace(view, demand=demand), policy)
    assert many.desired - len(many.leaving) >= few.desired - len(few.leaving)
    assert len(many.leaving) <= len(few.leaving)
