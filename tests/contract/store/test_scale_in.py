"""A fleet that shrinks: who is to go is told, drained, and ended; nobody else is."""

from dataclasses import replace

import pytest
from tests.fixtures.fleet_rig import POLICY, FleetRig, draining

from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.protocol.node.work import Heartbeat, Order, ReleaseAttempt
from giornata.store import schema


@pytest.fixture
def fleet_rig(rig) -> FleetRig:
    return FleetRig(rig)


def test_a_working_node_that_is_to_go_is_told_at_its_heartbeat_and_ended_when_it_has_let_go(fleet_rig, rig):
    instance = draining(fleet_rig, rig)
    (attempt,) = rig.rows(schema.attempts)
    assert heartbeat(rig.ctx, attempt["id"], Heartbeat(step=1)).order is Order.DRAIN
    fleet_rig.turns(5)
    assert fleet_rig.present() == [instance]
    release(rig.ctx, attempt["id"], ReleaseAttempt())
    fleet_rig.turns(2)
    assert fleet_rig.present() == []


def test_a_node_that_stays_is_not_told(fleet_rig, rig):
    rig.add_job()
    fleet_rig.turn()
    assert fleet_rig.claim(fleet_rig.present()[0]).lease
    fleet_rig.turns(3)
    (attempt,) = rig.rows(schema.attempts)
    assert heartbeat(rig.ctx, attempt["id"], Heartbeat(step=1)).order is Order.CONTINUE


def test_a_new_process_on_an_instance_that_is_to_go_gets_no_work(fleet_rig, rig):
    instance = draining(fleet_rig, rig)
    rig.add_job()
    reply = fleet_rig.claim(instance, start=1)
    assert (reply.lease, reply.drain, reply.reason) == (None, True, "draining")
    other = Instance(id="other", state=InstanceState.RUNNING, machine_id="m-other")
    assert fleet_rig.claim(other).lease, "and one on another instance does"


def test_node_that_ignores_drain_is_ended_after_drain_timeout(fleet_rig, rig):
    fleet_rig.govern(replace(POLICY, drain_timeout_s=30))
    rig.add_job()
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    assert fleet_rig.claim(instance).lease
    fleet_rig.govern(replace(POLICY, max_nodes=0, drain_timeout_s=30))
    fleet_rig.turns(28)
    assert fleet_rig.present() == [instance]
    fleet_rig.turns(5)
    assert fleet_rig.present() == []


def test_an_idle_node_that_got_a_job_in_the_meantime_keeps_it(fleet_rig, rig):
    """The plan was made from what was read before; it is made again where nobody else writes."""
    rig.add_job()
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    lease = fleet_rig.claim(instance).lease
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    with rig.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().values(state="canceled"))
    rig.clock.advance_s(61)

    class Racing:
        """Lets the node claim between the first look and the write."""

        def __getattr__(self, name):
            return getattr(rig.store, name)

        def begin(self):
            if not rig.rows(schema.jobs, state="running"):
                rig.add_job()
                assert fleet_rig.claim(instance).lease
            return rig.store.begin()

    scale_fleet(replace(fleet_rig.ctx, store=Racing()), "gpu")
    assert fleet_rig.instance(instance.id)["leaving_at_ms"] is None


def test_a_node_that_leaves_before_its_provider_is_asked_is_not_followed_by_another(fleet_rig, rig):
    """Where processes that end are started again, the next one is another instance, and nobody wants it."""
    instance = draining(fleet_rig, rig)
    fleet_rig.govern(POLICY)  # under which one that came would be kept for a while
    del fleet_rig.provider.instances[instance.id]
    fleet_rig.turns(3)
    assert fleet_rig.present() == []
    assert fleet_rig.row()["desired"] == 0


def test_a_node_that_vanishes_untold_is_followed_by_another(fleet_rig, rig):
    rig.add_job()
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    del fleet_rig.provider.instances[instance.id]
    fleet_rig.turns(3)
    assert len(fleet_rig.present()) == 1
    assert fleet_rig.row()["desired"] == 1
