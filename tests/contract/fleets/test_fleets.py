"""What every driver does, whoever the provider is.

A driver that can lose replies has `lost_replies()` besides: meanwhile the provider does what it is asked, and the
answer to the call that asked for it is FleetUnavailable. One whose nodes can be kept from coming has `hold_up()`,
which gives the words that the provider says of it, and `settle_held_up()` besides, and perhaps `settle_well()` for
what is only well after a while. One whose provider starts a process again in its place has
`end_process(instance_id)`, after which it has done so. One whose provider keeps settings
has `change_settings()`: the same fleet as after a restart of the server with another image.
"""

import pytest
from tests.contract.fleets.under_test import FleetUnderTest

from giornata.control.ports.fleet import Instance, InstanceState, Outdated, PricesOffers, Renews, TellsShortage
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone

PRESENT = {InstanceState.STARTING, InstanceState.RUNNING}


def settled(under_test: FleetUnderTest) -> dict[str, Instance]:
    """What runs once nothing is on its way, by id."""
    under_test.settle()
    listed = under_test.fleet.list()
    assert {each.state for each in listed} <= {InstanceState.RUNNING}, listed
    assert len({each.id for each in listed}) == len(listed), "each is listed once"
    return {each.id: each for each in listed}


def raised(under_test: FleetUnderTest, nodes: int) -> dict[str, Instance]:
    """So many run: because they were asked for, or because their owners started them."""
    if under_test.gives_nodes:
        under_test.fleet.desired(nodes)
    else:
        under_test.join(nodes)
    found = settled(under_test)
    assert len(found) == nodes
    return found


def test_a_fleet_has_nothing_before_it_is_asked_for(under_test):
    assert settled(under_test) == {}


def test_desired_number_of_instances_comes_and_stays(under_test):
    first = raised(under_test, 3)
    assert settled(under_test) == first
    assert all(each.machine_id for each in first.values()), "what runs is on a machine that has a name"


def test_asking_again_changes_nothing(under_test):
    first = raised(under_test, 2)
    under_test.fleet.desired(2)
    under_test.fleet.desired(2, leaving=())
    assert settled(under_test) == first


def test_starting_instances_listed_never_exceed_desired(renting):
    renting.fleet.desired(3)
    listed = renting.fleet.list()
    assert len(listed) <= 3
    assert {each.state for each in listed} <= PRESENT
    renting.fleet.desired(3)
    assert len(settled(renting)) == 3


def test_more_keep_those_that_are_there(renting):
    first = raised(renting, 1)
    second = raised(renting, 3)
    assert set(first) < set(second)


def test_fewer_end_those_that_are_named_where_the_provider_lets_choose(renting):
    first = raised(renting, 3)
    leaving = sorted(first)[1]
    renting.fleet.desired(2, leaving=[leaving])
    left = settled(renting)
    assert len(left) == 2
    assert set(left) < set(first), "nobody new"
    if renting.chooses_who_leaves:
        assert set(left) == set(first) - {leaving}


def test_several_leave_at_once(renting):
    first = raised(renting, 4)
    leaving = sorted(first)[:3]
    renting.fleet.desired(1, leaving=leaving)
    left = settled(renting)
    assert len(left) == 1
    if renting.chooses_who_leaves:
        assert set(left) == set(first) - set(leaving)


def test_naming_who_should_leave_ends_nobody_while_the_number_stays(under_test):
    first = raised(under_test, 2)
    under_test.fleet.desired(2, leaving=sorted(first)[:1])
    assert set(settled(under_test)) == set(first)


def test_leaving_may_name_what_is_gone_already(renting):
    first = raised(renting, 2)
    leaving = sorted(first)[0]
    renting.fleet.desired(1, leaving=[leaving])
    left = settled(renting)
    renting.fleet.desired(1, leaving=[leaving])
    assert settled(renting) == left


def test_fleet_scaled_to_zero_ends_all_instances_and_grows_again(renting):
    raised(renting, 2)
    renting.fleet.desired(0)
    assert settled(renting) == {}
    renting.fleet.desired(0)
    assert settled(renting) == {}
    raised(renting, 1)


def test_fleet_scaled_to_zero_before_instances_came_stays_empty(renting):
    renting.fleet.desired(2)
    renting.fleet.desired(0)
    assert settled(renting) == {}


def test_for_one_that_vanishes_another_comes(renting):
    first = raised(renting, 2)
    lost, kept = sorted(first)
    renting.vanish(lost)
    now = settled(renting)
    assert len(now) == 2
    assert kept in now
    assert lost not in now, "another process is another instance, and has another id"


def test_reallocating_ends_that_one_and_another_comes(renting):
    first = raised(renting, 2)
    moved, kept = sorted(first)
    renting.fleet.reallocate(moved, reason="a test")
    now = settled(renting)
    assert len(now) == 2
    assert kept in now
    (new,) = set(now) - {kept}
    assert new != moved
    if renting.reallocation_moves:
        assert now[new].machine_id != first[moved].machine_id


def test_reallocating_twice_moves_it_once(renting):
    first = raised(renting, 2)
    moved, kept = sorted(first)
    renting.fleet.reallocate(moved, reason="a test")
    now = settled(renting)
    with pytest.raises(InstanceGone):
        renting.fleet.reallocate(moved, reason="a test")
    assert settled(renting) == now
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


def test_offer_of_each_instance_has_a_price(under_test):
    fleet = under_test.fleet
    if not isinstance(fleet, PricesOffers):
        assert not hasattr(fleet, "prices"), "half of it"
        assert {each.offer for each in raised(under_test, 2).values()} == {""}
        return
    found, prices = raised(under_test, 2), fleet.prices()
    assert all(price >= 0 for price in prices.values())
    assert not prices or {each.offer for each in found.values()} <= {"", *prices}


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


def test_desired_number_is_kept_when_change_meets_unavailable_provider(under_test, never_away):
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


# who goes when the number falls


def test_drained_instance_ends_first_when_desired_falls(renting):
    first = raised(renting, 3)
    drained = sorted(first)[1]
    renting.fleet.drain(drained)
    assert settled(renting) == first, "nothing ends by it"
    renting.fleet.drain(drained)
    renting.fleet.desired(2)
    left = settled(renting)
    assert len(left) == 2
    if renting.chooses_who_leaves:
        assert set(left) == set(first) - {drained}


def test_instance_named_as_leaving_ends_before_a_drained_one(renting):
    first = raised(renting, 3)
    still_at_work, empty = sorted(first)[:2]
    renting.fleet.drain(still_at_work)
    renting.fleet.desired(2, leaving=[empty])
    left = settled(renting)
    if renting.chooses_who_leaves:
        assert set(left) == set(first) - {empty}
    renting.fleet.desired(1)
    if renting.chooses_who_leaves:
        assert set(settled(renting)) == set(first) - {empty, still_at_work}, "the mark has stayed"


# machines that nobody here can start or end


def test_fleet_that_gives_no_nodes_refuses_growth_and_reallocation(under_test):
    if under_test.gives_nodes:
        pytest.skip("here nodes come when they are asked for")
    assert not under_test.fleet.limits.gives_nodes, "whoever scales sees that there is nothing to ask for"
    first = raised(under_test, 2)
    with pytest.raises(FleetRefused, match="start giornata node"):
        under_test.fleet.desired(3)
    with pytest.raises(FleetRefused, match="cannot be replaced"):
        under_test.fleet.reallocate(sorted(first)[0], reason="a test")
    under_test.fleet.desired(1, leaving=sorted(first)[:1])
    under_test.fleet.desired(0)
    assert settled(under_test) == first, "fewer is no fault, and ends nobody"


def test_instance_that_joined_by_itself_is_listed_until_it_vanishes(under_test):
    first = raised(under_test, 2)
    if under_test.gives_nodes:
        pytest.skip("here nothing comes by itself")
    lost, kept = sorted(first)
    under_test.vanish(lost)
    assert set(settled(under_test)) == {kept}
    with pytest.raises(InstanceGone):
        under_test.fleet.drain(lost)


# what a provider says besides


def test_no_trouble_is_told_of_what_runs(under_test):
    raised(under_test, 2)
    assert {each.trouble for each in under_test.fleet.list()} == {""}
    if isinstance(under_test.fleet, TellsShortage):
        assert isinstance(under_test.fleet.shortage(), str)


def test_why_a_node_does_not_come_is_told_and_not_any_more_when_it_has_come(renting):
    if (hold_up := getattr(renting, "hold_up", None)) is None:
        pytest.skip("nothing can keep a node of this provider from coming")
    with hold_up() as why:
        renting.fleet.desired(1)
        renting.settle_held_up()
        said = [each.trouble for each in renting.fleet.list()]
        said += [renting.fleet.shortage()] if isinstance(renting.fleet, TellsShortage) else []
        assert any(why in each for each in said), said
    renting.fleet.desired(1)
    raised(renting, 1)
    getattr(renting, "settle_well", renting.settle)()
    assert {each.trouble for each in renting.fleet.list()} == {""}


# settings that change


def test_instance_with_current_settings_is_not_outdated(under_test):
    first = raised(under_test, 2)
    if not isinstance(under_test.fleet, Renews):
        assert getattr(under_test, "change_settings", None) is None
        return
    assert under_test.fleet.outdated() == Outdated()
    under_test.fleet.renew(sorted(first))
    assert settled(under_test) == first, "nobody is renewed for nothing"


def changing(under_test: FleetUnderTest) -> Renews:
    """The fleet with other settings, as after a restart of the server; the provider has what it had."""
    if not isinstance(under_test.fleet, Renews):
        pytest.skip("nodes of this provider have the settings that they were started with")
    under_test.change_settings()
    return under_test.fleet


def test_changed_settings_list_instances_as_outdated_and_end_none(renting):
    first = raised(renting, 2)
    fleet = changing(renting)
    outdated = fleet.outdated()
    assert outdated.instances == set(first)
    assert outdated.settings
    renting.fleet.desired(2)
    assert settled(renting) == first


def test_renewing_brings_the_settings_and_keeps_the_number(renting):
    first = raised(renting, 3)
    fleet = changing(renting)
    named = sorted(first)[:1] if fleet.one_by_one else sorted(first)
    fleet.renew(named)
    fleet.renew(named)  # as after a lost reply
    now = settled(renting)
    assert len(now) == 3
    if fleet.one_by_one:
        assert set(first) - set(now) == set(named), "nobody else is disturbed"
        assert fleet.outdated().instances == set(first) - set(named)
    fleet.renew(sorted(first))
    settled(renting)
    assert fleet.outdated() == Outdated()
    assert len(settled(renting)) == 3


def test_empty_fleet_has_no_outdated_instances(renting):
    fleet = changing(renting)
    assert fleet.outdated() == Outdated()
    fleet.renew(["3b0dd4e2-0b0f-4e3e-9d6f-8f0d4e0e0e0e"])
    assert settled(renting) == {}
