"""Fleets that follow the queue: what is decided is written down first, and mended whatever gets lost."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fixtures.fleets import ToyFleet, ask_for_work, governed, node_of, with_fleets

from giornata.control.context import Context
from giornata.control.fleet_loops import fleet_loops
from giornata.control.fleet_views import demand_of
from giornata.control.heartbeat import heartbeat
from giornata.control.loops import Loops
from giornata.control.ports.fleet import Instance, InstanceState, Limits
from giornata.control.reconcile import reconcile_fleet, unconfigured
from giornata.control.release import release
from giornata.control.scale import scale_fleet
from giornata.domain.errors import FleetRefused, FleetUnavailable
from giornata.domain.scaling import ScalingPolicy
from giornata.protocol.work import Heartbeat, Order, ReleaseAttempt
from giornata.store import schema

POLICY = ScalingPolicy(max_nodes=5, idle_to_zero_s=60)


class Yard:
    """A fleet by the name of gpu under a policy, its loops turned by hand, and its nodes."""

    def __init__(self, shop, *, policy=POLICY, **fleet) -> None:
        self.shop, self.provider = shop, ToyFleet(**fleet)
        self.ctx: Context = with_fleets(shop.ctx, {"gpu": governed(self.provider, scaling=policy)})
        shop.ctx = self.ctx
        self._requests = 0

    def turn(self) -> str:
        reconcile_fleet(self.ctx, "gpu")
        said = scale_fleet(self.ctx, "gpu")
        reconcile_fleet(self.ctx, "gpu")
        self.shop.clock.advance_s(1)
        return said

    def turns(self, seconds: float, *, asking: Sequence[Instance] = ()) -> None:
        """Meanwhile the nodes on the instances `asking` ask for work now and then."""
        for second in range(round(seconds)):
            if second % 10 == 0:
                for instance in asking:
                    self.claim(instance)
            self.turn()

    def govern(self, policy: ScalingPolicy) -> None:
        self.ctx = with_fleets(self.ctx, {"gpu": replace(self.ctx.fleets["gpu"], scaling=policy)})
        self.shop.ctx = self.ctx

    def claim(self, instance: Instance, *, start: int = 0):
        self._requests += 1
        return ask_for_work(self.shop, node_of(instance, start=start), request=f"{self._requests:08d}")

    def present(self) -> list[Instance]:
        return sorted(self.provider.instances.values(), key=lambda each: each.id)

    def row(self):
        return self.shop.rows(schema.fleets, name="gpu")[0]

    def instance(self, instance_id: str):
        return self.shop.rows(schema.instances, fleet="gpu", id=instance_id)[0]


@pytest.fixture
def yard(shop) -> Yard:
    return Yard(shop)


def test_nodes_come_for_jobs_and_go_when_they_are_done(yard, shop):
    yard.turn()
    assert yard.present() == []
    shop.add_job()
    shop.add_job()
    yard.turn()
    first, second = yard.present()
    leases = [yard.claim(each).lease for each in (first, second)]
    assert all(leases)
    yard.turns(100)
    assert yard.present() == [first, second], "who works stays, however long"
    for lease in leases:
        release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    with shop.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().values(state="canceled"))
    yard.turns(58, asking=(first, second))
    assert len(yard.present()) == 2
    yard.turns(5)
    assert yard.present() == []
    assert yard.row()["desired"] == 0
    assert all(each["gone_at_ms"] for each in shop.rows(schema.instances))


def test_what_needs_nothing_writes_nothing(yard, shop):
    yard.turns(2)
    before = shop.whole_database()
    assert scale_fleet(yard.ctx, "gpu") == ""
    assert shop.whole_database() == before
    assert [each for each in yard.provider.calls if each.startswith("desired")] == ["desired 0"]


def test_nothing_is_decided_before_the_provider_was_listed(yard, shop):
    shop.add_job()
    assert scale_fleet(yard.ctx, "gpu") == ""
    assert yard.provider.calls == []


def test_a_fleet_that_is_found_running_is_taken_over_as_it_is(yard):
    yard.provider.wanted = 2
    yard.turn()
    assert yard.row()["desired"] == 2
    assert len(yard.present()) == 2


# scale-in: told, drained, ended


def draining(yard, shop) -> Instance:
    """A node that works and was told to leave, because the operator wants none any more."""
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    assert yard.claim(instance).lease
    yard.govern(replace(POLICY, max_nodes=0))
    yard.turn()
    return instance


def test_a_working_node_that_is_to_go_is_told_at_its_heartbeat_and_ended_when_it_has_let_go(yard, shop):
    instance = draining(yard, shop)
    (attempt,) = shop.rows(schema.attempts)
    assert heartbeat(shop.ctx, attempt["id"], Heartbeat(step=1)).order is Order.DRAIN
    yard.turns(5)
    assert yard.present() == [instance]
    release(shop.ctx, attempt["id"], ReleaseAttempt())
    yard.turns(2)
    assert yard.present() == []


def test_a_node_that_stays_is_not_told(yard, shop):
    shop.add_job()
    yard.turn()
    assert yard.claim(yard.present()[0]).lease
    yard.turns(3)
    (attempt,) = shop.rows(schema.attempts)
    assert heartbeat(shop.ctx, attempt["id"], Heartbeat(step=1)).order is Order.CONTINUE


def test_a_new_process_on_an_instance_that_is_to_go_gets_no_work(yard, shop):
    instance = draining(yard, shop)
    shop.add_job()
    reply = yard.claim(instance, start=1)
    assert (reply.lease, reply.drain, reply.reason) == (None, True, "draining")
    other = Instance(id="other", state=InstanceState.RUNNING, machine_id="m-other")
    assert yard.claim(other).lease, "and one on another instance does"


def test_who_does_not_let_go_is_ended_after_its_time(yard, shop):
    yard.govern(replace(POLICY, drain_within_s=30))
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    assert yard.claim(instance).lease
    yard.govern(replace(POLICY, max_nodes=0, drain_within_s=30))
    yard.turns(28)
    assert yard.present() == [instance]
    yard.turns(5)
    assert yard.present() == []


def test_an_idle_node_that_got_a_job_in_the_meantime_keeps_it(yard, shop):
    """The plan was made from what was read before; it is made again where nobody else writes."""
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    lease = yard.claim(instance).lease
    release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    with shop.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().values(state="canceled"))
    shop.clock.advance_s(61)

    class Racing:
        """Lets the node claim between the first look and the write."""

        def __getattr__(self, name):
            return getattr(shop.store, name)

        def begin(self):
            if not shop.rows(schema.jobs, state="running"):
                shop.add_job()
                assert yard.claim(instance).lease
            return shop.store.begin()

    scale_fleet(replace(yard.ctx, store=Racing()), "gpu")
    assert yard.instance(instance.id)["leaving_at_ms"] is None


# D11


def test_a_job_banned_on_the_only_node_gets_another_machine_without_a_hand(yard, shop):
    yard.govern(replace(POLICY, max_nodes=1))
    job_id = shop.add_job(interrupted=True)
    yard.turn()
    (instance,) = yard.present()
    with shop.store.begin() as tx:
        ban = {"job_id": job_id, "machine_id": instance.machine_id, "reason": "crashed", "at_ms": 1}
        tx.connection.execute(schema.bans.insert().values(ban))
    assert yard.claim(instance).reason == "banned"
    yard.turns(2)
    (other,) = yard.present()
    assert other.machine_id != instance.machine_id
    assert yard.claim(other).lease.job_id == job_id
    (reallocation,) = shop.rows(schema.reallocations)
    assert reallocation["instance_id"] == instance.id
    assert instance.machine_id in reallocation["reason"]
    yard.turns(30)
    assert yard.present() == [other], "once is enough"


# lost replies, and crashes in between


@pytest.mark.parametrize("verb", ["up", "down", "reallocate"])
def test_a_lost_reply_is_mended_by_the_next_turn_and_doubles_nothing(yard, shop, verb):
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    if verb == "up":
        yard.claim(instance)
        for _ in range(2):
            shop.add_job()
    elif verb == "down":
        with shop.store.begin() as tx:
            tx.connection.execute(schema.jobs.update().values(state="canceled"))
        yard.claim(instance)
        shop.clock.advance_s(61)
        yard.turn()
    else:
        yard.govern(replace(POLICY, max_nodes=1, start_within_s=30))
        shop.clock.advance_s(31)
    yard.provider.lost_reply = True
    with pytest.raises(FleetUnavailable):
        yard.turn()
    assert "lost" in yard.row()["trouble"]
    yard.turns(5)
    assert yard.row()["trouble"] == ""
    assert yard.row()["told"] == yard.row()["desired"] == len(yard.present())
    assert len(yard.present()) == {"up": 3, "down": 0, "reallocate": 1}[verb]
    if verb == "reallocate":
        assert yard.present() != [instance]


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_crash_around_the_call_is_mended_by_the_next_turn(yard, shop, point):
    yard.turn()
    shop.add_job()

    class Crash(BaseException):
        """The process ends here."""

    asked = yard.provider.desired

    def crashing(nodes, *, leaving=()):
        if point == "after":
            asked(nodes, leaving=leaving)
        raise Crash

    yard.provider.desired = crashing
    with pytest.raises(Crash):
        scale_fleet(yard.ctx, "gpu")
    assert (yard.row()["desired"], yard.row()["told"]) == (1, None), "written down before the provider was asked"
    yard.provider.desired = asked
    yard.turns(2)
    assert (yard.row()["told"], len(yard.present())) == (1, 1)


# trouble


def test_a_refusal_is_shown_and_goes_when_it_is_over(yard, shop):
    yard.turn()
    shop.add_job()
    yard.provider.trouble = FleetRefused("the quota is used up")
    with pytest.raises(FleetRefused):
        scale_fleet(yard.ctx, "gpu")
    assert yard.row()["trouble"] == "fleet-refused: the quota is used up"
    yard.provider.trouble = None
    yard.turn()
    assert (yard.row()["trouble"], len(yard.present())) == ("", 1)


def test_a_fleet_that_is_away_stops_no_other_and_gets_no_share(shop):
    away, well = ToyFleet(price=1), ToyFleet(price=900)
    ctx = with_fleets(shop.ctx, {"away": governed(away, "away"), "well": governed(well, "well")})
    loops = Loops(ctx, fleet_loops(ctx.fleets))
    by_name = {each.name: each for each in fleet_loops(ctx.fleets)}
    assert sorted(by_name) == ["reconcile:away", "reconcile:well", "scale:away", "scale:well"]
    assert all(loops.run_once(each) for each in by_name.values())
    shop.add_job()
    away.trouble = FleetUnavailable("it rains")
    assert not loops.run_once(by_name["scale:away"])
    assert all(loops.run_once(by_name[name]) for name in ("reconcile:well", "scale:well"))
    assert len(well.instances) == 1, "the dearer one gets what the cheap one cannot deliver"
    status = {each.name: each for each in loops.status()}
    assert status["scale:away"].errors == 1
    assert status["scale:well"].errors == 0
    assert not status["scale:away"].vital


def test_nothing_is_concluded_from_a_listing_that_failed(yard, shop):
    shop.add_job()
    yard.turn()
    yard.provider.trouble = FleetUnavailable("it rains")
    before = shop.whole_database()
    with pytest.raises(FleetUnavailable):
        reconcile_fleet(yard.ctx, "gpu")
    after = shop.whole_database()
    assert "it rains" in after["fleets"][0]["unlisted"]
    after["fleets"][0]["unlisted"] = ""
    assert after == before


# what is listed and what is believed


def test_an_instance_that_was_asked_to_end_and_stays_is_asked_again_until_it_is_gone(yard, shop):
    instance = draining(yard, shop)
    (attempt,) = shop.rows(schema.attempts)
    release(shop.ctx, attempt["id"], ReleaseAttempt())
    yard.provider.stubborn = {instance.id}
    yard.turns(2)
    asked = yard.instance(instance.id)
    assert asked["ended_at_ms"]
    assert asked["gone_at_ms"] is None, "an answer to a call says nothing"
    before = len(yard.provider.calls)
    yard.turns(70)
    assert "desired 0" in yard.provider.calls[before:]
    yard.provider.stubborn = set()
    yard.turns(70)
    assert yard.present() == []
    assert yard.instance(instance.id)["gone_at_ms"]


def test_instances_that_nobody_asked_for_are_ended(yard):
    yard.turn()
    yard.provider.add("orphan")
    yard.turns(3)
    assert yard.present() == []


def test_a_node_on_an_instance_that_is_gone_is_told_to_leave_and_gets_no_work(yard, shop):
    shop.add_job()
    yard.turn()
    (zombie,) = yard.present()
    lease = yard.claim(zombie).lease
    del yard.provider.instances[zombie.id]
    yard.turns(29)
    assert heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE, (
        "it may be on its way out"
    )
    assert reconcile_fleet(yard.ctx, "gpu") == "", "it may be on its way out"
    shop.clock.advance_s(5)
    assert heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=2)).order is Order.CONTINUE
    assert "told to leave" in reconcile_fleet(yard.ctx, "gpu")
    assert heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=3)).order is Order.DRAIN
    release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    assert yard.claim(zombie).drain
    assert reconcile_fleet(yard.ctx, "gpu") == "", "told once"


def test_a_node_whose_instance_is_listed_is_no_zombie(yard, shop):
    shop.add_job()
    yard.turn()
    lease = yard.claim(yard.present()[0]).lease
    yard.turns(60)
    assert heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE


def test_one_that_vanished_is_gone_and_another_is_there(yard, shop):
    shop.add_job()
    yard.turn()
    (first,) = yard.present()
    del yard.provider.instances[first.id]
    yard.turn()
    (second,) = yard.present()
    assert second.id != first.id
    assert yard.instance(first.id)["gone_at_ms"]
    assert yard.instance(second.id)["gone_at_ms"] is None
    assert yard.row()["desired"] == 1


def test_since_when_it_runs_is_kept_from_the_first_listing_as_running(yard, shop):
    yard.provider.add("slow", InstanceState.STARTING)
    reconcile_fleet(yard.ctx, "gpu")
    assert yard.instance("slow")["running_at_ms"] is None
    shop.clock.advance_s(10)
    yard.provider.add("slow")
    reconcile_fleet(yard.ctx, "gpu")
    running_at_ms = yard.instance("slow")["running_at_ms"]
    assert running_at_ms == shop.clock.now_ms()
    shop.clock.advance_s(100)
    reconcile_fleet(yard.ctx, "gpu")
    assert yard.instance("slow")["running_at_ms"] == running_at_ms


def test_a_server_that_starts_again_has_local_nodes_again(yard, shop):
    """What the provider has forgotten is asked for again."""
    shop.add_job()
    yard.turn()
    yard.provider.wanted = 0
    yard.provider.instances.clear()
    yard.turns(63)
    assert len(yard.present()) == 1


def test_machines_in_quarantine_are_no_capacity(yard, shop):
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    with shop.store.begin() as tx:
        row = {"machine_id": instance.machine_id, "kind": "train", "state": "quarantined", "quota": 0}
        tx.connection.execute(schema.machines.insert().values(row | {"since_ms": 1, "scored_at_ms": 1}))
    yard.turn()
    assert len(yard.present()) == 2


def test_a_fleet_that_is_configured_no_more_is_reported(yard, shop):
    yard.turn()
    with shop.store.read() as tx:
        assert unconfigured(tx.fleets.all(), yard.ctx.fleets) == []
        (row,) = unconfigured(tx.fleets.all(), {})
    assert "not configured any more" in row.trouble


def test_a_fleet_whose_provider_gives_no_nodes_is_left_alone(shop):
    yard = Yard(shop, limits=Limits(most_nodes=0))
    yard.provider.add("somebody's")
    shop.add_job()
    yard.turns(3)
    assert len(yard.present()) == 1
    assert not [each for each in yard.provider.calls if each.startswith("desired")]


def test_demand_is_what_waits_with_bans_and_deadlines(shop):
    now_ms = shop.clock.now_ms()
    shop.add_job()
    shop.add_job(deadline_at_ms=now_ms + 3_600_000)
    shop.add_job(state="running", deadline_at_ms=now_ms + 3_600_000)
    banned = shop.add_job(interrupted=True)
    with shop.store.begin() as tx:
        tx.connection.execute(schema.bans.insert().values(job_id=banned, machine_id="m", reason="crashed", at_ms=1))
    with shop.store.read() as tx:
        demand = demand_of(tx)
    assert sum(each.jobs for each in demand) == 3
    (urgent,) = (each for each in demand if each.deadline_at_ms)
    assert 0 <= now_ms + 3_600_000 - urgent.deadline_at_ms < 300_000
    (group,) = (each for each in demand if each.banned_machines)
    assert (group.jobs, group.banned_machines) == (1, {"m"})


def test_a_node_that_leaves_before_its_provider_is_asked_is_not_followed_by_another(yard, shop):
    """Where processes that end are started again, the next one is another instance, and nobody wants it."""
    instance = draining(yard, shop)
    yard.govern(POLICY)  # under which one that came would be kept for a while
    del yard.provider.instances[instance.id]
    yard.turns(3)
    assert yard.present() == []
    assert yard.row()["desired"] == 0


def test_a_node_that_vanishes_untold_is_followed_by_another(yard, shop):
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    del yard.provider.instances[instance.id]
    yard.turns(3)
    assert len(yard.present()) == 1
    assert yard.row()["desired"] == 1
