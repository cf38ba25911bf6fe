"""A fleet that shrinks: who is to go is told, drained, and ended; nobody else is."""

from dataclasses import replace

import pytest
from tests.fixtures.yard import POLICY, Yard, draining

from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.reported_ends import release
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.protocol.work import Heartbeat, Order, ReleaseAttempt
from giornata.store import schema


@pytest.fixture
def yard(shop) -> Yard:
    return Yard(shop)


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
    yard.govern(replace(POLICY, drain_timeout_s=30))
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    assert yard.claim(instance).lease
    yard.govern(replace(POLICY, max_nodes=0, drain_timeout_s=30))
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
