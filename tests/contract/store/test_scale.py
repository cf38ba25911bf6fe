"""A fleet that follows the queue: nodes come for jobs, and go when there are none."""

from dataclasses import replace

import pytest
from tests.fixtures.fleet_rig import POLICY, FleetRig

from giornata.control.attempts.ending.lift_bans import lift_bans
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.caller import Caller
from giornata.control.fleet_views import demand_of
from giornata.control.fleets.scale import scale_fleet
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.ports.fleet import Limits
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import FailAttempt, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")


@pytest.fixture
def fleet_rig(rig) -> FleetRig:
    return FleetRig(rig)


def test_nodes_come_for_jobs_and_go_when_they_are_done(fleet_rig, rig):
    fleet_rig.turn()
    assert fleet_rig.present() == []
    rig.add_job()
    rig.add_job()
    fleet_rig.turn()
    first, second = fleet_rig.present()
    leases = [fleet_rig.claim(each).lease for each in (first, second)]
    assert all(leases)
    fleet_rig.turns(100)
    assert fleet_rig.present() == [first, second], "who works stays, however long"
    for lease in leases:
        release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    with rig.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().values(state="canceled"))
    fleet_rig.turns(4, asking=(first, second))
    assert len(fleet_rig.present()) == 1, "at the end of a queue all leave at once but one"
    fleet_rig.turns(54, asking=fleet_rig.present())
    assert len(fleet_rig.present()) == 1
    fleet_rig.turns(5)
    assert fleet_rig.present() == []
    assert fleet_rig.row()["desired"] == 0
    assert all(each["gone_at_ms"] for each in rig.rows(schema.instances))


def test_starting_instance_that_no_job_waits_for_ends_while_another_node_works(fleet_rig, rig):
    """Five are asked for, one works, and of the jobs that the others were asked for one is left."""
    jobs = [rig.add_job() for _ in range(5)]
    fleet_rig.turn()
    working, *others = fleet_rig.present()
    assert len(others) == 4
    lease = fleet_rig.claim(working).lease
    fleet_rig.turns(30)
    waiting = [job for job in jobs if job != lease.job_id]
    with rig.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().where(schema.jobs.c.id.in_(waiting[1:])).values(state="canceled"))
    fleet_rig.turns(45)
    assert len(fleet_rig.present()) == 5
    fleet_rig.turns(30)
    assert len(fleet_rig.present()) == 2
    assert working in fleet_rig.present(), "who leaves is named"
    assert fleet_rig.row()["desired"] == 2
    fleet_rig.turns(120)
    assert len(fleet_rig.present()) == 2, "a job waits for the other one"


def test_stuck_instance_that_no_job_needs_is_not_reallocated(fleet_rig, rig):
    fleet_rig.govern(replace(POLICY, startup_timeout_s=20.0))
    for _ in range(3):
        rig.add_job()
    fleet_rig.turn()
    working = fleet_rig.present()[0]
    assert fleet_rig.claim(working).lease
    with rig.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().where(schema.jobs.c.state == "queued").values(state="canceled"))
    fleet_rig.turns(40)
    assert not [call for call in fleet_rig.provider.calls if call.startswith("reallocate")]
    assert working in fleet_rig.present()
    assert rig.rows(schema.reallocations) == []


def test_scale_of_idle_fleet_writes_nothing(fleet_rig, rig):
    fleet_rig.turns(2)
    before = rig.whole_database()
    assert scale_fleet(fleet_rig.ctx, "gpu") == ""
    assert rig.whole_database() == before
    assert [each for each in fleet_rig.provider.calls if each.startswith("desired")] == ["desired 0"]


def test_scaling_waits_for_the_first_listing_of_the_provider(fleet_rig, rig):
    rig.add_job()
    assert scale_fleet(fleet_rig.ctx, "gpu") == ""
    assert fleet_rig.provider.calls == []


def test_a_fleet_that_is_found_running_is_taken_over_as_it_is(fleet_rig):
    fleet_rig.provider.wanted = 2
    fleet_rig.turn()
    assert fleet_rig.row()["desired"] == 2
    assert len(fleet_rig.present()) == 2


def test_a_job_banned_on_the_only_node_gets_another_machine_without_a_hand(fleet_rig, rig):
    fleet_rig.govern(replace(POLICY, max_nodes=1))
    job_id = rig.add_job(interrupted=True)
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    with rig.store.begin() as tx:
        ban = {"job_id": job_id, "machine_id": instance.machine_id, "reason": "crashed", "at_ms": 1}
        tx.connection.execute(schema.bans.insert().values(ban))
    assert fleet_rig.claim(instance).reason == "banned"
    fleet_rig.turns(2)
    (other,) = fleet_rig.present()
    assert other.machine_id != instance.machine_id
    assert fleet_rig.claim(other).lease.job_id == job_id
    (reallocation,) = rig.rows(schema.reallocations)
    assert reallocation["instance_id"] == instance.id
    assert instance.machine_id in reallocation["reason"]
    fleet_rig.turns(30)
    assert fleet_rig.present() == [other], "once is enough"


def banned_on_the_only_node(fleet_rig, rig):
    """A job that has just crashed on the node of a fleet of one."""
    fleet_rig.govern(replace(POLICY, max_nodes=1, startup_timeout_s=1800.0))
    job_id = rig.add_job()
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    lease = fleet_rig.claim(instance).lease
    fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.CRASHED, message="it died"))
    return job_id, instance


def tried_again_after_s(fleet_rig, rig, instance):
    """How long the node on the instance asks in vain, the loops turning meanwhile."""
    for waited_s in range(0, 2400, 10):
        if fleet_rig.claim(instance).lease:
            return waited_s
        lift_bans(fleet_rig.ctx)
        fleet_rig.turn()
        rig.clock.advance_s(9)
    return None


def test_a_job_banned_on_the_only_node_goes_back_where_its_fleet_cannot_bring_another_machine(rig):
    fleet_rig = FleetRig(rig, limits=Limits(moves=False))
    job_id, instance = banned_on_the_only_node(fleet_rig, rig)
    assert "unless another machine comes" not in get_job(rig.ctx, ADMIN, job_id).waiting_because
    assert tried_again_after_s(fleet_rig, rig, instance) <= 30
    assert fleet_rig.present() == [instance]


def test_a_job_goes_back_when_the_machine_that_its_fleet_could_bring_does_not_come_in_time(rig):
    """The fleet has room for one more, and its provider has none."""
    fleet_rig = FleetRig(rig, limits=Limits(moves=False))
    job_id, instance = banned_on_the_only_node(fleet_rig, rig)
    fleet_rig.provider.delivers = False
    fleet_rig.govern(replace(POLICY, max_nodes=2, startup_timeout_s=1800.0, idle_timeout_s=7200.0))
    fleet_rig.turn()
    assert "unless another machine comes before" in get_job(rig.ctx, ADMIN, job_id).waiting_because
    assert 1770 <= tried_again_after_s(fleet_rig, rig, instance) <= 1830


def test_a_job_goes_back_at_once_when_its_fleets_provider_refuses(rig):
    fleet_rig = FleetRig(rig, limits=Limits(moves=False))
    _, instance = banned_on_the_only_node(fleet_rig, rig)
    fleet_rig.govern(replace(POLICY, max_nodes=2))
    with rig.store.begin() as tx:
        tx.fleets.update("gpu", trouble="no quota")
    for _ in range(4):
        fleet_rig.claim(instance)
        rig.clock.advance_s(10)
    lift_bans(fleet_rig.ctx)
    assert fleet_rig.claim(instance).lease


def test_machines_in_quarantine_are_no_capacity(fleet_rig, rig):
    rig.add_job()
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    with rig.store.begin() as tx:
        row = {"machine_id": instance.machine_id, "kind": "train", "state": "quarantined", "quota": 0}
        tx.connection.execute(schema.machines.insert().values(row | {"since_ms": 1, "scored_at_ms": 1}))
    fleet_rig.turn()
    assert len(fleet_rig.present()) == 2


def test_a_fleet_whose_provider_gives_no_nodes_is_left_alone(rig):
    fleet_rig = FleetRig(rig, limits=Limits(most_nodes=0, gives_nodes=False))
    fleet_rig.provider.add("somebody's")
    rig.add_job()
    fleet_rig.turns(3)
    assert len(fleet_rig.present()) == 1
    assert not [each for each in fleet_rig.provider.calls if each.startswith("desired")]


def test_demand_is_what_waits_with_bans_and_deadlines(rig):
    now_ms = rig.clock.now_ms()
    rig.add_job()
    rig.add_job(deadline_at_ms=now_ms + 3_600_000)
    rig.add_job(state="running", deadline_at_ms=now_ms + 3_600_000)
    banned = rig.add_job(interrupted=True)
    with rig.store.begin() as tx:
        tx.connection.execute(schema.bans.insert().values(job_id=banned, machine_id="m", reason="crashed", at_ms=1))
    with rig.store.read() as tx:
        demand = demand_of(tx)
    assert sum(each.jobs for each in demand) == 3
    (urgent,) = (each for each in demand if each.deadline_at_ms)
    assert 0 <= now_ms + 3_600_000 - urgent.deadline_at_ms < 300_000
    (group,) = (each for each in demand if each.banned_machines)
    assert (group.jobs, group.banned_machines) == (1, {"m"})
