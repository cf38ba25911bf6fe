"""Who is renewed next: only nodes without a job, and a few at a time where the provider allows that."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.fleets.replacement import RolledInstance, RollStep, roll_step


def instance(name: str, *, outdated: bool = True, told: bool = False, busy: bool = False) -> RolledInstance:
    return RolledInstance(id=name, outdated=outdated, told=told, busy=busy)


def test_roll_tells_idle_instance_before_busy_ones():
    step = roll_step([instance("a", busy=True), instance("b"), instance("c")], one_by_one=True)
    assert step == RollStep(tell=("b",))


def test_a_tenth_at_a_time_and_one_at_least():
    assert len(roll_step([instance(f"n{number:02}") for number in range(40)], one_by_one=True).tell) == 4
    assert len(roll_step([instance(f"n{number:02}") for number in range(3)], one_by_one=True).tell) == 1
    under_way = [instance("a", told=True, busy=True), instance("b")]
    assert roll_step(under_way, one_by_one=True) == RollStep(), "the next one when this one is done"


def test_roll_does_not_renew_busy_instance_until_it_is_idle():
    assert roll_step([instance("a", told=True, busy=True)], one_by_one=True).renew == ()
    assert roll_step([instance("a", told=True)], one_by_one=True).renew == ("a",)


def test_roll_that_restarts_all_at_once_waits_until_no_instance_is_busy():
    idle, busy = instance("a", told=True), instance("b", told=True, busy=True)
    assert roll_step([instance("a"), instance("b", busy=True)], one_by_one=False).tell == ("a", "b")
    assert roll_step([idle, busy], one_by_one=False) == RollStep()
    assert roll_step([idle, instance("b", told=True)], one_by_one=False).renew == ("a", "b")
    new_and_at_work = instance("c", outdated=False, busy=True)
    assert roll_step([idle, new_and_at_work], one_by_one=False).renew == (), "it would restart as well"


def test_roll_is_over_when_no_instance_is_outdated():
    assert roll_step([instance("a", outdated=False)], one_by_one=True).over
    assert roll_step([], one_by_one=False).over
    assert not roll_step([instance("a", told=True, busy=True)], one_by_one=True).over


instances = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    max_size=30,
).map(
    lambda rows: [
        instance(f"n{number}", outdated=outdated, told=outdated and told, busy=busy)
        for number, (outdated, told, busy) in enumerate(rows)
    ]
)


@given(instances, st.booleans())
def test_roll_never_renews_busy_or_untold_instance(there, one_by_one):
    step = roll_step(there, one_by_one=one_by_one)
    by_id = {each.id: each for each in there}
    assert not [each for each in step.renew if by_id[each].busy or not by_id[each].told]
    assert not [each for each in step.tell if by_id[each].told or not by_id[each].outdated]
    if one_by_one:
        told = sum(each.told for each in there)
        assert not step.tell or told + len(step.tell) <= max(1, len(there) // 10)
