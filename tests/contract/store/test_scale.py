"""A fleet that follows the queue: nodes come for jobs, and go when there are none."""

from dataclasses import replace

import pytest
from tests.fixtures.yard import POLICY, Yard

from giornata.control.attempts.lift_bans import lift_bans
from giornata.control.attempts.reported_ends import fail, release
from giornata.control.caller import Caller
from giornata.control.fleet_views import demand_of
from giornata.control.fleets.scale import scale_fleet
from giornata.control.jobs.read_jobs import get_job
from giornata.control.ports.fleet import Limits
from giornata.domain.reasons import Reason
from giornata.protocol.admin import ROOT_PROJECT, Scope
from giornata.protocol.work import FailAttempt, ReleaseAttempt
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_admin")


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
    yard.turns(4, asking=(first, second))
    assert len(yard.present()) == 1, "at the end of a queue all leave at once but one"
    yard.turns(54, asking=yard.present())
    assert len(yard.present()) == 1
    yard.turns(5)
    assert yard.present() == []
    assert yard.row()["desired"] == 0
    assert all(each["gone_at_ms"] for each in shop.rows(schema.instances))


def test_what_has_not_started_goes_when_no_job_waits_for_it_although_another_works(yard, shop):
    """Five are asked for, one works, and of the jobs that the others were asked for one is left."""
    jobs = [shop.add_job() for _ in range(5)]
    yard.turn()
    working, *others = yard.present()
    assert len(others) == 4
    lease = yard.claim(working).lease
    yard.turns(30)
    waiting = [job for job in jobs if job != lease.job_id]
    with shop.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().where(schema.jobs.c.id.in_(waiting[1:])).values(state="canceled"))
    yard.turns(45)
    assert len(yard.present()) == 5
    yard.turns(30)
    assert len(yard.present()) == 2
    assert working in yard.present(), "who leaves is named"
    assert yard.row()["desired"] == 2
    yard.turns(120)
    assert len(yard.present()) == 2, "a job waits for the other one"


def test_what_is_stuck_and_not_needed_is_not_replaced(yard, shop):
    yard.govern(replace(POLICY, startup_timeout_s=20.0))
    for _ in range(3):
        shop.add_job()
    yard.turn()
    working = yard.present()[0]
    assert yard.claim(working).lease
    with shop.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().where(schema.jobs.c.state == "queued").values(state="canceled"))
    yard.turns(40)
    assert not [call for call in yard.provider.calls if call.startswith("reallocate")]
    assert working in yard.present()
    assert shop.rows(schema.reallocations) == []


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


def banned_on_the_only_node(yard, shop):
    """A job that has just crashed on the node of a fleet of one."""
    yard.govern(replace(POLICY, max_nodes=1, startup_timeout_s=1800.0))
    job_id = shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    lease = yard.claim(instance).lease
    fail(shop.ctx, lease.attempt_id, FailAttempt(reason=Reason.CRASHED, message="it died"))
    return job_id, instance


def tried_again_after_s(yard, shop, instance):
    """How long the node on the instance asks in vain, the loops turning meanwhile."""
    for waited_s in range(0, 2400, 10):
        if yard.claim(instance).lease:
            return waited_s
        lift_bans(yard.ctx)
        yard.turn()
        shop.clock.advance_s(9)
    return None


def test_a_job_banned_on_the_only_node_goes_back_where_its_fleet_cannot_bring_another_machine(shop):
    yard = Yard(shop, limits=Limits(moves=False))
    job_id, instance = banned_on_the_only_node(yard, shop)
    assert "unless another machine comes" not in get_job(shop.ctx, ADMIN, job_id).waiting_because
    assert tried_again_after_s(yard, shop, instance) <= 30
    assert yard.present() == [instance]


def test_a_job_goes_back_when_the_machine_that_its_fleet_could_bring_does_not_come_in_time(shop):
    """The fleet has room for one more, and its provider has none."""
    yard = Yard(shop, limits=Limits(moves=False))
    job_id, instance = banned_on_the_only_node(yard, shop)
    yard.provider.delivers = False
    yard.govern(replace(POLICY, max_nodes=2, startup_timeout_s=1800.0, idle_timeout_s=7200.0))
    yard.turn()
    assert "unless another machine comes before" in get_job(shop.ctx, ADMIN, job_id).waiting_because
    assert 1770 <= tried_again_after_s(yard, shop, instance) <= 1830


def test_a_job_goes_back_at_once_when_its_fleets_provider_refuses(shop):
    yard = Yard(shop, limits=Limits(moves=False))
    _, instance = banned_on_the_only_node(yard, shop)
    yard.govern(replace(POLICY, max_nodes=2))
    with shop.store.begin() as tx:
        tx.fleets.update("gpu", trouble="no quota")
    for _ in range(4):
        yard.claim(instance)
        shop.clock.advance_s(10)
    lift_bans(yard.ctx)
    assert yard.claim(instance).lease


def test_machines_in_quarantine_are_no_capacity(yard, shop):
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    with shop.store.begin() as tx:
        row = {"machine_id": instance.machine_id, "kind": "train", "state": "quarantined", "quota": 0}
        tx.connection.execute(schema.machines.insert().values(row | {"since_ms": 1, "scored_at_ms": 1}))
    yard.turn()
    assert len(yard.present()) == 2


def test_a_fleet_whose_provider_gives_no_nodes_is_left_alone(shop):
    yard = Yard(shop, limits=Limits(most_nodes=0, gives_nodes=False))
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
