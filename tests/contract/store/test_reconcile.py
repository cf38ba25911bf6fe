"""What the provider lists against what is believed; only a listing says that an instance is there or gone."""

import pytest
from tests.fixtures.fleet_rig import FleetRig, draining

from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.fleets.reconcile import reconcile_fleet, unconfigured
from giornata.control.ports.fleet import InstanceState, Limits
from giornata.domain.errors import FleetUnavailable, LeaseLost
from giornata.protocol.node.work import Heartbeat, Order, ReleaseAttempt
from giornata.store import schema


@pytest.fixture
def fleet_rig(rig) -> FleetRig:
    return FleetRig(rig)


def test_failed_listing_changes_no_instance(fleet_rig, rig):
    rig.add_job()
    fleet_rig.turn()
    fleet_rig.provider.trouble = FleetUnavailable("it rains")
    before = rig.whole_database()
    with pytest.raises(FleetUnavailable):
        reconcile_fleet(fleet_rig.ctx, "gpu")
    after = rig.whole_database()
    assert "it rains" in after["fleets"][0]["unlisted"]
    after["fleets"][0]["unlisted"] = ""
    assert after == before


def test_an_instance_that_was_asked_to_end_and_stays_is_asked_again_until_it_is_gone(fleet_rig, rig):
    instance = draining(fleet_rig, rig)
    (attempt,) = rig.rows(schema.attempts)
    release(rig.ctx, attempt["id"], ReleaseAttempt())
    fleet_rig.provider.stubborn = {instance.id}
    fleet_rig.turns(2)
    asked = fleet_rig.instance(instance.id)
    assert asked["ended_at_ms"]
    assert asked["gone_at_ms"] is None, "an answer to a call says nothing"
    before = len(fleet_rig.provider.calls)
    fleet_rig.turns(70)
    assert "desired 0" in fleet_rig.provider.calls[before:]
    fleet_rig.provider.stubborn = set()
    fleet_rig.turns(70)
    assert fleet_rig.present() == []
    assert fleet_rig.instance(instance.id)["gone_at_ms"]


def test_instances_that_nobody_asked_for_are_ended(fleet_rig):
    fleet_rig.turn()
    fleet_rig.provider.add("orphan")
    fleet_rig.turns(3)
    assert fleet_rig.present() == []


def test_a_node_on_an_instance_that_is_gone_is_told_to_leave_and_gets_no_work(fleet_rig, rig):
    rig.add_job()
    fleet_rig.turn()
    (zombie,) = fleet_rig.present()
    lease = fleet_rig.claim(zombie).lease
    del fleet_rig.provider.instances[zombie.id]
    fleet_rig.turns(29)
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE, "it may be on its way out"
    assert reconcile_fleet(fleet_rig.ctx, "gpu") == "", "it may be on its way out"
    rig.clock.advance_s(5)
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=2)).order is Order.CONTINUE
    assert "told to leave" in reconcile_fleet(fleet_rig.ctx, "gpu")
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=3)).order is Order.DRAIN
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    assert fleet_rig.claim(zombie).drain
    assert reconcile_fleet(fleet_rig.ctx, "gpu") == "", "told once"


def test_a_node_whose_instance_is_listed_is_no_zombie(fleet_rig, rig):
    rig.add_job()
    fleet_rig.turn()
    lease = fleet_rig.claim(fleet_rig.present()[0]).lease
    fleet_rig.turns(60)
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE


def test_vanished_instance_is_marked_gone_and_replaced(fleet_rig, rig):
    rig.add_job()
    fleet_rig.turn()
    (first,) = fleet_rig.present()
    del fleet_rig.provider.instances[first.id]
    fleet_rig.turn()
    (second,) = fleet_rig.present()
    assert second.id != first.id
    assert fleet_rig.instance(first.id)["gone_at_ms"]
    assert fleet_rig.instance(second.id)["gone_at_ms"] is None
    assert fleet_rig.row()["desired"] == 1


def test_since_when_it_runs_is_kept_from_the_first_listing_as_running(fleet_rig, rig):
    fleet_rig.provider.add("slow", InstanceState.STARTING)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    assert fleet_rig.instance("slow")["running_at_ms"] is None
    rig.clock.advance_s(10)
    fleet_rig.provider.add("slow")
    reconcile_fleet(fleet_rig.ctx, "gpu")
    running_at_ms = fleet_rig.instance("slow")["running_at_ms"]
    assert running_at_ms == rig.clock.now_ms()
    rig.clock.advance_s(100)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    assert fleet_rig.instance("slow")["running_at_ms"] == running_at_ms


def test_a_fleet_that_is_configured_no_more_is_reported(fleet_rig, rig):
    fleet_rig.turn()
    with rig.store.read() as tx:
        assert unconfigured(tx.fleets.all(), fleet_rig.ctx.fleets) == []
        (row,) = unconfigured(tx.fleets.all(), {})
    assert "not configured any more" in row.trouble


def at_work(fleet_rig, rig):
    """The instance of the one node, which has a job, and its lease."""
    rig.add_job()
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    return instance, fleet_rig.claim(instance).lease


def test_the_leases_of_an_instance_end_with_it_where_what_is_not_listed_has_ended(rig):
    fleet_rig = FleetRig(rig, limits=Limits(gone_has_ended=True))
    instance, lease = at_work(fleet_rig, rig)
    del fleet_rig.provider.instances[instance.id]
    fleet_rig.turn()
    (other,) = fleet_rig.present()
    assert fleet_rig.claim(other).lease.job_id == lease.job_id, "at once, and not when the lease would have run out"
    with pytest.raises(LeaseLost):  # should it live in spite of it
        heartbeat(fleet_rig.ctx, lease.attempt_id, Heartbeat(step=1))


def test_lease_goes_on_when_the_instance_of_its_node_is_not_listed(fleet_rig, rig):
    instance, lease = at_work(fleet_rig, rig)
    del fleet_rig.provider.instances[instance.id]
    fleet_rig.turn()
    (other,) = fleet_rig.present()
    assert fleet_rig.claim(other).lease is None
    assert heartbeat(fleet_rig.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE


def test_a_node_on_an_instance_that_somebody_else_is_ending_gets_no_further_jobs(fleet_rig, rig):
    instance, lease = at_work(fleet_rig, rig)
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    fleet_rig.provider.add(instance.id, InstanceState.STOPPING)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    reply = fleet_rig.claim(instance, start=1)
    assert (reply.lease, reply.drain, reply.reason) == (None, True, "draining"), "whatever process it is"
