"""What is said between a provider and us besides its listing: why nodes do not come, who leaves, and patience."""

from dataclasses import replace

import pytest
from tests.contract.store.test_reap import keep_quarantined, quarantine, with_fleet
from tests.fixtures.fleets import TalkativeFleet, ToyFleet, ask_for_work, governed, node_of, with_fleets

from giornata.control.caller import Caller
from giornata.control.fleets.read_fleets import list_fleets, read_fleet
from giornata.control.fleets.reap import reap
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone
from giornata.domain.fleet_plan import ScalingPolicy
from giornata.protocol.admin import ROOT_PROJECT, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_admin")
POLICY = ScalingPolicy(max_nodes=5, idle_timeout_s=60)


class Street:
    """A fleet gpu; its loops are turned by hand."""

    def __init__(self, shop, provider: ToyFleet) -> None:
        self.shop, self.provider = shop, provider
        self.ctx = shop.ctx = with_fleets(shop.ctx, {"gpu": governed(provider, scaling=POLICY)})

    def turn(self) -> None:
        reconcile_fleet(self.ctx, "gpu")
        scale_fleet(self.ctx, "gpu")
        self.shop.clock.advance_s(1)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def seen(self):
        return read_fleet(self.ctx, ADMIN, "gpu")

    def heard(self, verb: str) -> int:
        return len([each for each in self.provider.calls if each.split()[0] == verb])


# why nodes do not come


def test_why_nodes_do_not_come_is_shown_until_they_do(shop):
    street = Street(shop, TalkativeFleet())
    street.provider.delivers = False
    street.provider.says = "lately: Image Pull Failed (3)"
    shop.add_job()
    street.turns(3)
    shop.clock.advance_s(61)
    street.turn()
    assert street.seen().shortage == "lately: Image Pull Failed (3)"
    assert street.seen().trouble == "", "nothing was refused"
    street.provider.delivers = True
    street.turns(2)
    assert street.seen().shortage == ""


def test_a_provider_is_asked_why_once_a_minute_and_not_when_all_is_well(shop):
    street = Street(shop, TalkativeFleet())
    shop.add_job()
    street.turns(120)
    assert street.heard("shortage") == 0
    street.provider.delivers = False
    street.provider.instances.clear()
    street.turns(180)
    assert 2 <= street.heard("shortage") <= 4
    assert street.heard("outdated") <= 6


def test_what_is_said_of_an_instance_is_shown_with_it_and_of_its_fleet(shop):
    street = Street(shop, ToyFleet())
    shop.add_job()
    street.turns(2)
    (running,) = street.provider.instances.values()
    waiting = Instance(id="i-2", state=InstanceState.STARTING, trouble="ImagePullBackOff: no such tag")
    street.provider.instances["i-2"] = waiting
    street.turn()
    assert {each.id: each.trouble for each in street.seen().instances} == {running.id: "", "i-2": waiting.trouble}
    assert street.seen().shortage == "ImagePullBackOff: no such tag"
    street.provider.instances["i-2"] = Instance(id="i-2", state=InstanceState.RUNNING)
    street.turn()
    assert {each.trouble for each in street.seen().instances} == {""}
    assert street.seen().shortage == ""


def test_a_fleet_whose_first_listing_fails_is_shown_with_the_reason(shop):
    street = Street(shop, ToyFleet())
    street.provider.trouble = FleetRefused("the API key is not known")
    with pytest.raises(FleetRefused):
        reconcile_fleet(street.ctx, "gpu")
    (fleet,) = list_fleets(street.ctx, ADMIN).items
    assert (fleet.trouble, fleet.listed_at) == ("fleet-refused: the API key is not known", None)
    shop.add_job()
    assert scale_fleet(street.ctx, "gpu") == ""
    assert street.heard("desired") == 0, "nothing is decided of a fleet that was never listed"
    street.provider.trouble = None
    street.provider.wanted = 2
    street.turn()
    assert (street.seen().trouble, len(street.seen().instances)) == ("", 2)
    assert street.seen().listed_at is not None


# whom to take


def test_the_provider_knows_who_leaves_before_the_number_falls(shop):
    street = Street(shop, ToyFleet())
    shop.add_job()
    shop.add_job()
    street.turns(2)
    with shop.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().values(state="canceled"))
    shop.clock.advance_s(90)
    street.provider.calls.clear()
    street.turns(4)
    said = [each for each in street.provider.calls if each != "list"]
    assert said == ["drain i-1", "drain i-2", "desired 0"]


def test_who_stays_is_not_drained(shop):
    street = Street(shop, ToyFleet())
    shop.add_job()
    street.turns(20)
    assert street.heard("drain") == 0


def test_a_mark_that_was_lost_is_set_again(shop):
    street = Street(shop, ToyFleet())
    shop.add_job()
    street.turns(2)
    (instance,) = street.provider.instances.values()
    assert ask_for_work(shop, node_of(instance), request="00000001").lease
    allowed_none = governed(street.provider, scaling=replace(POLICY, max_nodes=0))
    street.ctx = shop.ctx = with_fleets(shop.ctx, {"gpu": allowed_none})
    street.provider.lost_reply = True
    with pytest.raises(FleetUnavailable):
        street.turn()
    street.turns(5)
    assert street.heard("drain") == 2, "until the provider has surely heard it"
    assert list(street.provider.instances.values()) == [instance], "and it works on"


@pytest.mark.parametrize("answer", [InstanceGone("404"), FleetRefused("it does not run yet")])
def test_one_that_cannot_be_marked_holds_up_nothing(shop, answer):
    street = Street(shop, ToyFleet())
    shop.add_job()
    street.turns(2)
    with shop.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().values(state="canceled"))
    shop.clock.advance_s(90)
    reconcile_fleet(street.ctx, "gpu")
    street.provider.trouble = answer
    scale_fleet(street.ctx, "gpu")
    street.provider.trouble = None
    shop.clock.advance_s(1)
    street.turns(3)
    assert street.heard("drain") == 1
    assert street.provider.instances == {}


# patience


@pytest.mark.parametrize("verb", ["list", "desired", "shortage"])
def test_a_provider_that_asks_for_patience_is_asked_nothing_until_then(shop, verb):
    street = Street(shop, TalkativeFleet())
    street.turns(2)
    street.provider.delivers = False
    shop.add_job()
    if verb == "shortage":
        street.turns(1)
        shop.clock.advance_s(61)
    refusing(street.provider, verb, FleetUnavailable("429", retry_after_s=40))
    for _ in range(2):
        try:
            reconcile_fleet(street.ctx, "gpu")
            scale_fleet(street.ctx, "gpu")
        except FleetUnavailable:
            break
    asked = len(street.provider.calls)
    assert street.seen().quiet_until is not None
    shop.clock.advance_s(39)
    reconcile_fleet(street.ctx, "gpu")
    scale_fleet(street.ctx, "gpu")
    assert len(street.provider.calls) == asked
    shop.clock.advance_s(2)
    street.turn()
    assert len(street.provider.calls) > asked
    assert street.seen().quiet_until is None


def refusing(provider: ToyFleet, verb: str, error: Exception) -> None:
    """The next call of that verb is answered so."""
    method = getattr(provider, verb)

    def refuse(*arguments, **named):
        setattr(provider, verb, method)
        provider.calls.append(verb)
        raise error

    setattr(provider, verb, refuse)


def test_the_very_first_answer_may_ask_for_patience(shop):
    street = Street(shop, ToyFleet())
    refusing(street.provider, "list", FleetUnavailable("429", retry_after_s=40))
    with pytest.raises(FleetUnavailable):
        reconcile_fleet(street.ctx, "gpu")
    shop.clock.advance_s(39)
    reconcile_fleet(street.ctx, "gpu")
    assert street.heard("list") == 1
    shop.clock.advance_s(1)
    reconcile_fleet(street.ctx, "gpu")
    assert street.heard("list") == 2


def test_a_provider_that_names_no_time_is_asked_at_the_next_turn(shop):
    street = Street(shop, ToyFleet())
    refusing(street.provider, "list", FleetUnavailable("503"))
    with pytest.raises(FleetUnavailable):
        reconcile_fleet(street.ctx, "gpu")
    reconcile_fleet(street.ctx, "gpu")
    assert street.heard("list") == 2
    assert street.seen().quiet_until is None


def test_the_patience_of_one_is_nobody_elses(shop):
    patient, other = ToyFleet(), ToyFleet()
    ctx = with_fleets(shop.ctx, {"patient": governed(patient, "patient"), "other": governed(other, "other")})
    refusing(patient, "list", FleetUnavailable("429", retry_after_s=40))
    with pytest.raises(FleetUnavailable):
        reconcile_fleet(ctx, "patient")
    for name in ("patient", "other"):
        reconcile_fleet(ctx, name)
    assert (patient.calls, other.calls) == (["list"], ["list"])


def test_the_reaper_keeps_to_it_as_well(shop):
    fleet = with_fleet(shop, 10)
    keep_quarantined(shop)
    quarantine(shop, 3)
    fleet.says = FleetUnavailable("429", retry_after_s=40)
    assert not reap(shop.ctx).reallocated
    fleet.says = None
    shop.clock.advance_s(39)
    assert not reap(shop.ctx)
    assert fleet.reallocated == []
    shop.clock.advance_s(2)
    assert reap(shop.ctx).reallocated == 1
