"""What the provider lists against what is believed; only a listing says that an instance is there or gone."""

import pytest
from tests.fixtures.yard import Yard, draining

from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.reported_ends import release
from giornata.control.fleets.reconcile import reconcile_fleet, unconfigured
from giornata.control.ports.fleet import InstanceState, Limits
from giornata.domain.errors import FleetUnavailable, LeaseLost
from giornata.protocol.work import Heartbeat, Order, ReleaseAttempt
from giornata.store import schema


@pytest.fixture
def yard(shop) -> Yard:
    return Yard(shop)


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


def test_a_fleet_that_is_configured_no_more_is_reported(yard, shop):
    yard.turn()
    with shop.store.read() as tx:
        assert unconfigured(tx.fleets.all(), yard.ctx.fleets) == []
        (row,) = unconfigured(tx.fleets.all(), {})
    assert "not configured any more" in row.trouble


def at_work(yard, shop):
    """The instance of the one node, which has a job, and its lease."""
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    return instance, yard.claim(instance).lease


def test_the_leases_of_an_instance_end_with_it_where_what_is_not_listed_has_ended(shop):
    yard = Yard(shop, limits=Limits(gone_has_ended=True))
    instance, lease = at_work(yard, shop)
    del yard.provider.instances[instance.id]
    yard.turn()
    (other,) = yard.present()
    assert yard.claim(other).lease.job_id == lease.job_id, "at once, and not when the lease would have run out"
    with pytest.raises(LeaseLost):  # should it live in spite of it
        heartbeat(yard.ctx, lease.attempt_id, Heartbeat(step=1))


def test_elsewhere_a_node_may_live_on_when_its_instance_is_not_listed(yard, shop):
    instance, lease = at_work(yard, shop)
    del yard.provider.instances[instance.id]
    yard.turn()
    (other,) = yard.present()
    assert yard.claim(other).lease is None
    assert heartbeat(yard.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE


def test_a_node_on_an_instance_that_somebody_else_is_ending_gets_no_further_jobs(yard, shop):
    instance, lease = at_work(yard, shop)
    release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    yard.provider.add(instance.id, InstanceState.STOPPING)
    reconcile_fleet(yard.ctx, "gpu")
    reply = yard.claim(instance, start=1)
    assert (reply.lease, reply.drain, reply.reason) == (None, True, "draining"), "whatever process it is"
