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
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")
POLICY = ScalingPolicy(max_nodes=5, idle_timeout_s=60)


class ProviderRig:
    """A fleet gpu; its loops are turned by hand."""

    def __init__(self, rig, provider: ToyFleet) -> None:
        self.rig, self.provider = rig, provider
        self.ctx = rig.ctx = with_fleets(rig.ctx, {"gpu": governed(provider, scaling=POLICY)})

    def turn(self) -> None:
        reconcile_fleet(self.ctx, "gpu")
        scale_fleet(self.ctx, "gpu")
        self.rig.clock.advance_s(1)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def seen(self):
        return read_fleet(self.ctx, ADMIN, "gpu")

    def heard(self, verb: str) -> int:
        return len([each for each in self.provider.calls if each.split()[0] == verb])


# why nodes do not come


def test_why_nodes_do_not_come_is_shown_until_they_do(rig):
    fleet_rig = ProviderRig(rig, TalkativeFleet())
    fleet_rig.provider.delivers = False
    fleet_rig.provider.says = "lately: Image Pull Failed (3)"
    rig.add_job()
    fleet_rig.turns(3)
    rig.clock.advance_s(61)
    fleet_rig.turn()
    assert fleet_rig.seen().shortage == "lately: Image Pull Failed (3)"
    assert fleet_rig.seen().trouble == "", "nothing was refused"
    fleet_rig.provider.delivers = True
    fleet_rig.turns(2)
    assert fleet_rig.seen().shortage == ""


def test_a_provider_is_asked_why_once_a_minute_and_not_when_all_is_well(rig):
    fleet_rig = ProviderRig(rig, TalkativeFleet())
    rig.add_job()
    fleet_rig.turns(120)
    assert fleet_rig.heard("shortage") == 0
    fleet_rig.provider.delivers = False
    fleet_rig.provider.instances.clear()
    fleet_rig.turns(180)
    assert 2 <= fleet_rig.heard("shortage") <= 4
    assert fleet_rig.heard("outdated") <= 6


def test_instance_trouble_is_shown_with_the_instance_and_as_shortage_of_its_fleet(rig):
    fleet_rig = ProviderRig(rig, ToyFleet())
    rig.add_job()
    fleet_rig.turns(2)
    (running,) = fleet_rig.provider.instances.values()
    waiting = Instance(id="i-2", state=InstanceState.STARTING, trouble="ImagePullBackOff: no such tag")
    fleet_rig.provider.instances["i-2"] = waiting
    fleet_rig.turn()
    assert {each.id: each.trouble for each in fleet_rig.seen().instances} == {running.id: "", "i-2": waiting.trouble}
    assert fleet_rig.seen().shortage == "ImagePullBackOff: no such tag"
    fleet_rig.provider.instances["i-2"] = Instance(id="i-2", state=InstanceState.RUNNING)
    fleet_rig.turn()
    assert {each.trouble for each in fleet_rig.seen().instances} == {""}
    assert fleet_rig.seen().shortage == ""


def test_a_fleet_whose_first_listing_fails_is_shown_with_the_reason(rig):
    fleet_rig = ProviderRig(rig, ToyFleet())
    fleet_rig.provider.trouble = FleetRefused("the API key is not known")
    with pytest.raises(FleetRefused):
        reconcile_fleet(fleet_rig.ctx, "gpu")
    (fleet,) = list_fleets(fleet_rig.ctx, ADMIN).items
    assert (fleet.trouble, fleet.listed_at) == ("fleet-refused: the API key is not known", None)
    rig.add_job()
    assert scale_fleet(fleet_rig.ctx, "gpu") == ""
    assert fleet_rig.heard("desired") == 0, "nothing is decided of a fleet that was never listed"
    fleet_rig.provider.trouble = None
    fleet_rig.provider.wanted = 2
    fleet_rig.turn()
    assert (fleet_rig.seen().trouble, len(fleet_rig.seen().instances)) == ("", 2)
    assert fleet_rig.seen().listed_at is not None


# whom to take


def test_the_provider_knows_who_leaves_before_the_number_falls(rig):
    fleet_rig = ProviderRig(rig, ToyFleet())
    rig.add_job()
    rig.add_job()
    fleet_rig.turns(2)
    with rig.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().values(state="canceled"))
    rig.clock.advance_s(90)
    fleet_rig.provider.calls.clear()
    fleet_rig.turns(4)
    said = [each for each in fleet_rig.provider.calls if each != "list"]
    assert said == ["drain i-1", "drain i-2", "desired 0"]


def test_instance_that_stays_is_not_drained(rig):
    fleet_rig = ProviderRig(rig, ToyFleet())
    rig.add_job()
    fleet_rig.turns(20)
    assert fleet_rig.heard("drain") == 0


def test_a_mark_that_was_lost_is_set_again(rig):
    fleet_rig = ProviderRig(rig, ToyFleet())
    rig.add_job()
    fleet_rig.turns(2)
    (instance,) = fleet_rig.provider.instances.values()
    assert ask_for_work(rig, node_of(instance), request="00000001").lease
    allowed_none = governed(fleet_rig.provider, scaling=replace(POLICY, max_nodes=0))
    fleet_rig.ctx = rig.ctx = with_fleets(rig.ctx, {"gpu": allowed_none})
    fleet_rig.provider.lost_reply = True
    with pytest.raises(FleetUnavailable):
        fleet_rig.turn()
    fleet_rig.turns(5)
    assert fleet_rig.heard("drain") == 2, "until the provider has surely heard it"
    assert list(fleet_rig.provider.instances.values()) == [instance], "and it works on"


@pytest.mark.parametrize("answer", [InstanceGone("404"), FleetRefused("it does not run yet")])
def test_drain_that_the_provider_fails_does_not_hold_up_scale_in(rig, answer):
    fleet_rig = ProviderRig(rig, ToyFleet())
    rig.add_job()
    fleet_rig.turns(2)
    with rig.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().values(state="canceled"))
    rig.clock.advance_s(90)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    fleet_rig.provider.trouble = answer
    scale_fleet(fleet_rig.ctx, "gpu")
    fleet_rig.provider.trouble = None
    rig.clock.advance_s(1)
    fleet_rig.turns(3)
    assert fleet_rig.heard("drain") == 1
    assert fleet_rig.provider.instances == {}


# patience


@pytest.mark.parametrize("verb", ["list", "desired", "shortage"])
def test_a_provider_that_asks_for_patience_is_asked_nothing_until_then(rig, verb):
    fleet_rig = ProviderRig(rig, TalkativeFleet())
    fleet_rig.turns(2)
    fleet_rig.provider.delivers = False
    rig.add_job()
    if verb == "shortage":
        fleet_rig.turns(1)
        rig.clock.advance_s(61)
    refusing(fleet_rig.provider, verb, FleetUnavailable("429", retry_after_s=40))
    for _ in range(2):
        try:
            reconcile_fleet(fleet_rig.ctx, "gpu")
            scale_fleet(fleet_rig.ctx, "gpu")
        except FleetUnavailable:
            break
    asked = len(fleet_rig.provider.calls)
    assert fleet_rig.seen().quiet_until is not None
    rig.clock.advance_s(39)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    scale_fleet(fleet_rig.ctx, "gpu")
    assert len(fleet_rig.provider.calls) == asked
    rig.clock.advance_s(2)
    fleet_rig.turn()
    assert len(fleet_rig.provider.calls) > asked
    assert fleet_rig.seen().quiet_until is None


def refusing(provider: ToyFleet, verb: str, error: Exception) -> None:
    """The next call of that verb is answered so."""
    method = getattr(provider, verb)

    def refuse(*arguments, **named):
        setattr(provider, verb, method)
        provider.calls.append(verb)
        raise error

    setattr(provider, verb, refuse)


def test_the_very_first_answer_may_ask_for_patience(rig):
    fleet_rig = ProviderRig(rig, ToyFleet())
    refusing(fleet_rig.provider, "list", FleetUnavailable("429", retry_after_s=40))
    with pytest.raises(FleetUnavailable):
        reconcile_fleet(fleet_rig.ctx, "gpu")
    rig.clock.advance_s(39)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    assert fleet_rig.heard("list") == 1
    rig.clock.advance_s(1)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    assert fleet_rig.heard("list") == 2


def test_a_provider_that_names_no_time_is_asked_at_the_next_turn(rig):
    fleet_rig = ProviderRig(rig, ToyFleet())
    refusing(fleet_rig.provider, "list", FleetUnavailable("503"))
    with pytest.raises(FleetUnavailable):
        reconcile_fleet(fleet_rig.ctx, "gpu")
    reconcile_fleet(fleet_rig.ctx, "gpu")
    assert fleet_rig.heard("list") == 2
    assert fleet_rig.seen().quiet_until is None


def test_the_patience_of_one_is_nobody_elses(rig):
    patient, other = ToyFleet(), ToyFleet()
    ctx = with_fleets(rig.ctx, {"patient": governed(patient, "patient"), "other": governed(other, "other")})
    refusing(patient, "list", FleetUnavailable("429", retry_after_s=40))
    with pytest.raises(FleetUnavailable):
        reconcile_fleet(ctx, "patient")
    for name in ("patient", "other"):
        reconcile_fleet(ctx, name)
    assert (patient.calls, other.calls) == (["list"], ["list"])


def test_the_reaper_keeps_to_it_as_well(rig):
    fleet = with_fleet(rig, 10)
    keep_quarantined(rig)
    quarantine(rig, 3)
    fleet.says = FleetUnavailable("429", retry_after_s=40)
    assert not reap(rig.ctx).reallocated
    fleet.says = None
    rig.clock.advance_s(39)
    assert not reap(rig.ctx)
    assert fleet.reallocated == []
    rig.clock.advance_s(2)
    assert reap(rig.ctx).reallocated == 1
