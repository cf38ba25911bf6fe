"""Settings that changed while a fleet runs: they are shown, and applied without losing work when an operator asks."""

from dataclasses import replace

import pytest
from tests.fixtures.fleets import TalkativeFleet, ToyFleet, ask_for_work, governed, node_of, with_fleets
from tests.fixtures.store_rig import NODE_CALLER

from giornata.control.attempts.ending.reported_ends import release
from giornata.control.caller import Caller
from giornata.control.fleets.read_fleets import read_fleet
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.roll import ask_to_roll
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import Instance, Outdated
from giornata.domain.errors import Conflict, FleetUnavailable, Forbidden, NotFound
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.protocol.node.fleets import InstanceStanding
from giornata.protocol.node.work import ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")
POLICY = ScalingPolicy(max_nodes=6, idle_timeout_s=86_400)


class RollingFleet:
    """A fleet of a provider that keeps settings, with nodes that work; its loops are turned by hand."""

    def __init__(self, rig, *, one_by_one: bool = True, jobs: int = 3) -> None:
        self.rig, self.provider = rig, TalkativeFleet(one_by_one=one_by_one)
        self.ctx = rig.ctx = with_fleets(rig.ctx, {"gpu": governed(self.provider, scaling=POLICY)})
        self._requests = 0
        for _ in range(jobs):
            rig.add_job()
        self.turns(2)
        self.leases = {each.id: self.claim(each).lease for each in self.present()}
        assert len(self.leases) == jobs
        assert all(self.leases.values())

    def turns(self, count: int) -> None:
        for _ in range(count):
            reconcile_fleet(self.ctx, "gpu")
            scale_fleet(self.ctx, "gpu")
            self.rig.clock.advance_s(1)

    def claim(self, instance: Instance, *, start: int = 0):
        self._requests += 1
        node = node_of(instance, start=start)
        return ask_for_work(self.rig, node, request=f"{self._requests:08d}", caller=NODE_CALLER)

    def let_go(self, instance_id: str) -> None:
        """The node on it gives its job back, as it is told to."""
        release(self.ctx, self.leases.pop(instance_id).attempt_id, ReleaseAttempt())

    def present(self) -> list[Instance]:
        return sorted(self.provider.instances.values(), key=lambda each: each.id)

    def renewing(self) -> list[str]:
        return [each["id"] for each in self.rig.rows(schema.instances) if each["renewing"] and not each["gone_at_ms"]]

    def seen(self):
        return read_fleet(self.ctx, ADMIN, "gpu")

    def change_settings(self) -> None:
        self.provider.settings = "image:2"
        self.rig.clock.advance_s(61)
        self.turns(1)


@pytest.fixture
def rolling(rig) -> RollingFleet:
    return RollingFleet(rig)


def test_outdated_instances_are_shown_and_not_renewed_unasked(rolling):
    assert (rolling.seen().outdated, rolling.seen().rolls) == ((), True)
    before = rolling.present()
    rolling.change_settings()
    assert rolling.seen().outdated == ("image",)
    assert all(each.outdated for each in rolling.seen().instances)
    rolling.turns(30)
    assert rolling.present() == before
    assert rolling.renewing() == []
    assert not [each for each in rolling.provider.calls if each.startswith("renew")]


def test_nodes_are_renewed_a_few_at_a_time_and_only_when_they_have_let_go(rolling):
    before = [each.id for each in rolling.present()]
    rolling.change_settings()
    rolling.provider.calls.clear()
    assert ask_to_roll(rolling.ctx, ADMIN, "gpu").rolling_since is not None
    for number in range(1, 4):
        rolling.turns(20)
        (told,) = rolling.renewing()
        assert {each.id: each.state for each in rolling.seen().instances}[told] is InstanceStanding.RENEWING
        assert told in rolling.provider.instances, "one at work is never made to go"
        assert rolling.claim(rolling.provider.instances[told], start=9).drain, "and gets no other job"
        rolling.let_go(told)
        rolling.turns(2)
        assert told not in rolling.provider.instances
        assert len(rolling.present()) == 3, "another one is there in its place"
        for instance in rolling.present():
            if instance.id not in before and instance.id not in rolling.leases:
                rolling.leases[instance.id] = rolling.claim(instance).lease
        assert len([each for each in rolling.present() if each.id not in before]) == number
    rolling.turns(3)
    assert (rolling.seen().rolling_since, rolling.seen().outdated) == (None, ())
    assert rolling.renewing() == []
    assert {rolling.provider.made_with[each.id] for each in rolling.present()} == {"image:2"}
    assert all(rolling.leases.values()), "the jobs that were given back went on"
    said = [each for each in rolling.provider.calls if each not in {"list", "outdated"}]
    assert said == [f"renew {each}" for each in before], "the number is not touched"


def test_roll_that_restarts_all_at_once_waits_until_every_node_has_let_go(rig):
    rolling = RollingFleet(rig, one_by_one=False)
    before = rolling.present()
    rolling.change_settings()
    ask_to_roll(rolling.ctx, ADMIN, "gpu")
    rolling.turns(2)
    assert rolling.renewing() == [each.id for each in before], "all are told"
    for instance in before[:2]:
        rolling.let_go(instance.id)
    rolling.turns(30)
    assert rolling.present() == before
    rolling.let_go(before[2].id)
    rolling.turns(3)
    assert len(rolling.present()) == 3
    assert not {each.id for each in rolling.present()} & {each.id for each in before}
    assert rolling.seen().rolling_since is None
    assert rolling.renewing() == []
    assert [each for each in rolling.provider.calls if each.startswith("renew")] == [
        f"renew {' '.join(each.id for each in before)}"
    ]
    assert rolling.claim(rolling.present()[0]).lease


@pytest.mark.parametrize("one_by_one", [True, False])
def test_instances_that_restart_where_they_are_get_work_again(rig, one_by_one):
    rolling = RollingFleet(rig, one_by_one=one_by_one, jobs=1)
    rolling.provider.keeps_ids = True
    (instance,) = rolling.present()
    rolling.change_settings()
    ask_to_roll(rolling.ctx, ADMIN, "gpu")
    rolling.turns(2)
    rolling.let_go(instance.id)
    rolling.turns(3)
    assert (rolling.present(), rolling.renewing(), rolling.seen().rolling_since) == ([instance], [], None)
    assert rolling.claim(instance, start=1).lease, "the new process on it"


def test_a_lost_reply_renews_nobody_twice(rolling):
    rolling.change_settings()
    ask_to_roll(rolling.ctx, ADMIN, "gpu")
    rolling.turns(2)
    (told,) = rolling.renewing()
    rolling.let_go(told)
    reconcile_fleet(rolling.ctx, "gpu")
    rolling.provider.lost_reply = True
    with pytest.raises(FleetUnavailable):
        scale_fleet(rolling.ctx, "gpu")
    rolling.turns(5)
    assert len(rolling.present()) == 3
    assert len([each for each in rolling.present() if rolling.provider.made_with[each.id] == "image:2"]) == 1


def test_rolling_what_is_as_the_settings_say_touches_nobody(rolling):
    before = rolling.present()
    ask_to_roll(rolling.ctx, ADMIN, "gpu")
    rolling.turns(3)
    assert rolling.present() == before
    assert rolling.seen().rolling_since is None
    assert all(each.state is InstanceStanding.RUNNING for each in rolling.seen().instances)


def test_roll_ignores_reports_from_before_it_was_asked_for(rolling):
    rolling.change_settings()
    rolling.provider.settings = "image:1"  # it was changed back
    ask_to_roll(rolling.ctx, ADMIN, "gpu")
    scale_fleet(rolling.ctx, "gpu")
    assert rolling.renewing() == []
    rolling.turns(3)
    assert rolling.renewing() == []
    assert rolling.seen().outdated == ()


def test_a_fleet_without_settings_at_its_provider_says_so(rig):
    ctx = with_fleets(rig.ctx, {"desk": replace(governed(ToyFleet(), "desk"), driver="static")})
    reconcile_fleet(ctx, "desk")
    assert not read_fleet(ctx, ADMIN, "desk").rolls
    with pytest.raises(Conflict, match="desk cannot be rolled: with the driver static"):
        ask_to_roll(ctx, ADMIN, "desk")


def test_roll_by_node_key_or_of_unknown_fleet_is_refused(rolling, rig):
    with pytest.raises(Forbidden):
        ask_to_roll(rolling.ctx, NODE_CALLER, "gpu")
    with pytest.raises(NotFound, match="there is no fleet other"):
        ask_to_roll(rolling.ctx, ADMIN, "other")
    unseen = with_fleets(rig.ctx, {"new": governed(TalkativeFleet(), "new")})
    with pytest.raises(Conflict, match="have not been listed yet"):
        ask_to_roll(unseen, ADMIN, "new")


class Barren(TalkativeFleet):
    """Of what its provider would make none ever comes up, until it has other settings."""

    made_next = "image:1"

    def outdated(self) -> Outdated:
        other = self.made_next != self.settings
        return Outdated(settings=("image",)) if other else super().outdated()

    def renew(self, instance_ids) -> None:
        self.made_next = self.settings
        super().renew(instance_ids)

    def _fill(self) -> None:
        if self.made_next != "image:1":
            super()._fill()


@pytest.mark.parametrize("one_by_one", [True, False])
def test_rolling_renews_what_the_provider_would_make_where_it_can_make_none(rig, one_by_one):
    provider = Barren(one_by_one=one_by_one)
    ctx = rig.ctx = with_fleets(rig.ctx, {"gpu": governed(provider, scaling=POLICY)})
    rig.add_job()

    def turns(count: int) -> None:
        for _ in range(count):
            reconcile_fleet(ctx, "gpu")
            scale_fleet(ctx, "gpu")
            rig.clock.advance_s(1)

    turns(3)
    assert provider.instances == {}
    provider.settings = "image:2"
    assert ask_to_roll(ctx, ADMIN, "gpu").rolling_since is not None
    turns(1)
    assert read_fleet(ctx, ADMIN, "gpu").outdated == ("image",)
    turns(4)
    assert len(provider.instances) == 1
    seen = read_fleet(ctx, ADMIN, "gpu")
    assert (seen.rolling_since, seen.outdated) == (None, ())
    assert [each for each in provider.calls if each.startswith("renew")] == ["renew "]
