"""What every driver does, whoever the provider is.

A driver that can lose replies has `lost_replies()` besides: meanwhile the provider does what it is asked, and the
answer to the call that asked for it is FleetUnavailable.
"""

import pytest
from tests.contract.fleets.under_test import FleetUnderTest

from giornata.control.ports.fleet import Instance, InstanceState
from giornata.domain.errors import FleetUnavailable, InstanceGone

PRESENT = {InstanceState.STARTING, InstanceState.RUNNING}


def settled(under_test: FleetUnderTest) -> dict[str, Instance]:
    """What runs once nothing is on its way, by id."""
    under_test.settle()
    listed = under_test.fleet.list()
    assert {each.state for each in listed} <= {InstanceState.RUNNING}, listed
    assert len({each.id for each in listed}) == len(listed), "each is listed once"
    return {each.id: each for each in listed}


def raised(under_test: FleetUnderTest, nodes: int) -> dict[str, Instance]:
    under_test.fleet.desired(nodes)
    found = settled(under_test)
    assert len(found) == nodes
    return found


def test_a_fleet_has_nothing_before_it_is_asked_for(under_test):
    assert settled(under_test) == {}


def test_so_many_as_desired_come_and_stay(under_test):
    first = raised(under_test, 3)
    assert settled(under_test) == first
    assert all(each.machine_id for each in first.values()), "what runs is on a machine that has a name"


def test_asking_again_changes_nothing(under_test):
    first = raised(under_test, 2)
    under_test.fleet.desired(2)
    under_test.fleet.desired(2, leaving=())
    assert settled(under_test) == first


def test_those_on_their_way_are_listed_as_such_or_not_yet_but_never_too_many(under_test):
    under_test.fleet.desired(3)
    listed = under_test.fleet.list()
    assert len(listed) <= 3
    assert {each.state for each in listed} <= PRESENT
    under_test.fleet.desired(3)
    assert len(settled(under_test)) == 3


def test_more_keep_those_that_are_there(under_test):
    first = raised(under_test, 1)
    second = raised(under_test, 3)
    assert set(first) < set(second)


def test_fewer_end_those_that_are_named_where_the_provider_lets_choose(under_test):
    first = raised(under_test, 3)
    leaving = sorted(first)[1]
    under_test.fleet.desired(2, leaving=[leaving])
    left = settled(under_test)
    assert len(left) == 2
    assert set(left) < set(first), "nobody new"
    if under_test.chooses_who_leaves:
        assert set(left) == set(first) - {leaving}


def test_several_leave_at_once(under_test):
    first = raised(under_test, 4)
    leaving = sorted(first)[:3]
    under_test.fleet.desired(1, leaving=leaving)
    left = settled(under_test)
    assert len(left) == 1
    if under_test.chooses_who_leaves:
        assert set(left) == set(first) - set(leaving)


def test_naming_who_should_leave_ends_nobody_while_the_number_stays(under_test):
    first = raised(under_test, 2)
    under_test.fleet.desired(2, leaving=sorted(first)[:1])
    assert set(settled(under_test)) == set(first)


def test_leaving_may_name_what_is_gone_already(under_test):
    first = raised(under_test, 2)
    leaving = sorted(first)[0]
    under_test.fleet.desired(1, leaving=[leaving])
    left = settled(under_test)
    under_test.fleet.desired(1, leaving=[leaving])
    assert settled(under_test) == left


def test_to_zero_and_back(under_test):
    raised(under_test, 2)
    under_test.fleet.desired(0)
    assert settled(under_test) == {}
    under_test.fleet.desired(0)
    assert settled(under_test) == {}
    raised(under_test, 1)


def test_to_zero_before_anything_came(under_test):
    under_test.fleet.desired(2)
    under_test.fleet.desired(0)
    assert settled(under_test) == {}


def test_for_one_that_vanishes_another_comes(under_test):
    first = raised(under_test, 2)
    lost, kept = sorted(first)
    under_test.vanish(lost)
    now = settled(under_test)
    assert len(now) == 2
    assert kept in now
    assert lost not in now, "another process is another instance, and has another id"


def test_reallocating_ends_that_one_and_another_comes(under_test):
    first = raised(under_test, 2)
    moved, kept = sorted(first)
    under_test.fleet.reallocate(moved, reason="a test")
    now = settled(under_test)
    assert len(now) == 2
    assert kept in now
    (new,) = set(now) - {kept}
    assert new != moved
    if under_test.reallocation_moves:
        assert now[new].machine_id != first[moved].machine_id


def test_reallocating_twice_moves_it_once(under_test):
    first = raised(under_test, 2)
    moved, kept = sorted(first)
    under_test.fleet.reallocate(moved, reason="a test")
    now = settled(under_test)
    with pytest.raises(InstanceGone):
        under_test.fleet.reallocate(moved, reason="a test")
    assert settled(under_test) == now
    assert kept in now


@pytest.mark.parametrize("verb", ["reallocate", "drain"])
def test_an_instance_that_was_never_there_is_gone(under_test, verb):
    first = raised(under_test, 1)
    with pytest.raises(InstanceGone):
        if verb == "drain":
            under_test.fleet.drain("3b0dd4e2-0b0f-4e3e-9d6f-8f0d4e0e0e0e")
        else:
            under_test.fleet.reallocate("3b0dd4e2-0b0f-4e3e-9d6f-8f0d4e0e0e0e", reason="a test")
    assert settled(under_test) == first


def test_draining_loses_no_place(under_test):
    first = raised(under_test, 2)
    drained, kept = sorted(first)
    under_test.fleet.drain(drained)
    now = settled(under_test)
    assert kept in now
    assert len(now) == 2, "the number is what was desired, whether the node went or the provider only told it"


def test_the_price_is_what_somebody_says(under_test):
    price = under_test.fleet.price()
    assert price.micro_usd_per_hour >= 0
    assert price.source


def test_limits_are_told_without_being_asked_for(under_test):
    limits = under_test.fleet.limits
    assert limits.most_nodes is None or limits.most_nodes >= 0
    assert limits.excluded_after_reallocation_s >= 0


def test_a_provider_that_is_away_is_unavailable_and_nothing_is_lost(under_test, never_away):
    if never_away:
        pytest.skip("this provider can always be asked")
    first = raised(under_test, 2)
    name = sorted(first)[0]
    with under_test.away():
        for call in (
            under_test.fleet.list,
            lambda: under_test.fleet.desired(0),
            lambda: under_test.fleet.reallocate(name, reason="a test"),
        ):
            with pytest.raises(FleetUnavailable):
                call()
    assert settled(under_test) == first


def test_what_was_desired_before_it_went_away_stays_desired(under_test, never_away):
    if never_away:
        pytest.skip("this provider can always be asked")
    under_test.fleet.desired(2)
    with under_test.away(), pytest.raises(FleetUnavailable):
        under_test.fleet.desired(3)
    assert len(settled(under_test)) == 2


def test_a_lost_reply_and_a_repeat_do_not_double(under_test):
    lost_replies = getattr(under_test, "lost_replies", None)
    if lost_replies is None:
        pytest.skip("no reply of this provider can be lost")
    raised(under_test, 1)
    with lost_replies(), pytest.raises(FleetUnavailable):
        under_test.fleet.desired(3)
    under_test.fleet.desired(3)
    first = settled(under_test)
    assert len(first) == 3
    moved = sorted(first)[0]
    with lost_replies(), pytest.raises(FleetUnavailable):
        under_test.fleet.reallocate(moved, reason="a test")
    with pytest.raises(InstanceGone):
        under_test.settle()
        under_test.fleet.reallocate(moved, reason="a test")
    now = settled(under_test)
    assert len(now) == 3
    assert set(first) - set(now) == {moved}
