"""Starts that fail: what is written down of them, what they say against machines, and when a fleet stops trying."""

from dataclasses import replace

import pytest
from tests.fixtures.fleet_rig import POLICY, FleetRig
from tests.fixtures.fleets import node_of
from tests.fixtures.store_rig import NODE_CALLER

from giornata.control.attempts.claiming.known_node import note_checks
from giornata.control.attempts.ending.lift_bans import lift_bans
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.caller import Caller
from giornata.control.fleets.read_fleets import read_fleet
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.ports.fleet import Instance, InstanceState, Limits
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.node_checks import NodeChecks
from giornata.protocol.node.work import FailAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")


@pytest.fixture
def fleet_rig(rig) -> FleetRig:
    """A provider that starts a process again in its place."""
    return FleetRig(rig, limits=Limits(moves=False))


def restart(fleet_rig: FleetRig, instance: Instance, *, as_another: bool = False) -> Instance:
    """The process on the instance ends by itself, and comes again: perhaps as an instance of its own."""
    restarts = (instance.restarts or 0) + 1
    again = replace(instance, restarts=restarts, id=f"{instance.id}x" if as_another else instance.id)
    del fleet_rig.provider.instances[instance.id]
    fleet_rig.provider.instances[again.id] = again
    fleet_rig.rig.clock.advance_s(20)
    return again


def check(fleet_rig: FleetRig, instance: Instance, *, start: int = 0, leaving: bool = False) -> None:
    node, why = node_of(instance, start=start), ("no engine",) if leaving else ()
    checks = NodeChecks(node=node, kinds=("train",), shortcomings=why, leaving=leaving)
    note_checks(fleet_rig.ctx, NODE_CALLER, checks)


def state_of(fleet_rig: FleetRig, instance: Instance) -> str | None:
    rows = fleet_rig.rig.rows(schema.machines, machine_id=instance.machine_id)
    return rows[0]["state"] if rows else None


def asked_for(fleet_rig: FleetRig) -> Instance:
    fleet_rig.rig.add_job()
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    return instance


def waited(fleet_rig: FleetRig, seconds: int) -> None:
    """Time passes, and somebody looks now and then."""
    for _ in range(seconds // 20):
        fleet_rig.rig.clock.advance_s(19)
        fleet_rig.turn()


@pytest.mark.parametrize("as_another", [False, True])
def test_two_starts_that_failed_are_counted_held_against_the_machine_and_no_capacity(fleet_rig, as_another):
    instance = asked_for(fleet_rig)
    for failed, state in ((1, "probation"), (2, "quarantined")):
        instance = restart(fleet_rig, instance, as_another=as_another)
        fleet_rig.turn()
        row = fleet_rig.instance(instance.id)
        assert (row["restarts"], row["failed_starts"]) == (failed, failed)
        assert state_of(fleet_rig, instance) == state
    assert len(fleet_rig.present()) == 2


def test_a_restart_of_a_node_that_has_asked_for_work_is_held_against_nobody(fleet_rig):
    instance = asked_for(fleet_rig)
    for start in range(3):
        fleet_rig.claim(instance, start=start)
        instance = restart(fleet_rig, instance)
        fleet_rig.turn()
        assert fleet_rig.instance(instance.id)["failed_starts"] == 0
    assert state_of(fleet_rig, instance) is None


@pytest.mark.parametrize("as_another", [False, True])
def test_restarts_of_instance_told_to_leave_are_no_failed_starts(fleet_rig, rig, as_another):
    instance = asked_for(fleet_rig)
    rig.clock.advance_s(100)
    fleet_rig.govern(replace(POLICY, max_nodes=0))
    fleet_rig.provider.stubborn = {instance.id}
    fleet_rig.turn()
    for _ in range(1 if as_another else 4):
        instance = restart(fleet_rig, instance, as_another=as_another)
        fleet_rig.provider.stubborn = {instance.id}
        fleet_rig.turn()
    assert state_of(fleet_rig, instance) is None


def test_restarts_while_the_server_was_away_are_no_failed_starts(fleet_rig, rig):
    """Nodes end when they find no server for a while, and are started again and again."""
    instance = asked_for(fleet_rig)
    fleet_rig.claim(instance)
    fleet_rig.turn()
    rig.clock.advance_s(400)
    again = replace(instance, restarts=7)
    fleet_rig.provider.instances[instance.id] = again
    fleet_rig.turn()
    row = fleet_rig.instance(instance.id)
    assert (row["restarts"], row["failed_starts"], state_of(fleet_rig, instance)) == (7, 0, None)
    fleet_rig.turns(61)  # it is written down once a minute that it is there
    restart(fleet_rig, again)
    fleet_rig.turn()
    assert fleet_rig.instance(instance.id)["failed_starts"] == 1


def test_a_node_that_comes_up_after_all_clears_its_machine(fleet_rig):
    instance = asked_for(fleet_rig)
    for _ in range(2):
        instance = restart(fleet_rig, instance)
        fleet_rig.turn()
    assert state_of(fleet_rig, instance) == "quarantined"
    fleet_rig.claim(instance)
    fleet_rig.turn()
    assert state_of(fleet_rig, instance) == "ok"
    assert fleet_rig.instance(instance.id)["failed_starts"] == 0


def test_instance_that_provider_cannot_start_is_no_capacity_and_blames_no_machine(fleet_rig):
    instance = asked_for(fleet_rig)
    fleet_rig.provider.instances[instance.id] = replace(
        instance, state=InstanceState.STARTING, restarts=0, cannot_start=True
    )
    fleet_rig.turn()
    fleet_rig.turn()
    assert len(fleet_rig.present()) == 2
    assert state_of(fleet_rig, instance) is None


def test_fleet_stops_and_blames_no_machine_when_all_starts_fail(fleet_rig, rig):
    for _ in range(4):
        rig.add_job()
    fleet_rig.govern(replace(POLICY, max_nodes=9, max_scale_up=3))
    fleet_rig.turn()
    fleet_rig.turn()
    found = fleet_rig.present()
    for _ in range(2):
        found = [restart(fleet_rig, each) for each in found]
        fleet_rig.turn()
    assert {state_of(fleet_rig, each) for each in found} <= {None, "ok"}
    fleet_rig.turns(300)
    assert len(fleet_rig.present()) == len(found), "no more are asked for"
    fleet = read_fleet(fleet_rig.ctx, ADMIN, "gpu")
    assert fleet.plan.stopped == f"none of {len(found)} nodes ever came"
    assert fleet.plan.stopped in get_job(fleet_rig.ctx, ADMIN, "job_000001").waiting_because
    fleet_rig.claim(found[0])
    fleet_rig.claim(found[1])
    fleet_rig.turn()
    assert read_fleet(fleet_rig.ctx, ADMIN, "gpu").plan.stopped == ""


def test_nodes_that_are_billed_and_never_come_are_replaced_after_ten_minutes_within_the_reapers_share(rig):
    """Twelve of twenty came. The provider would allow ten a minute."""
    fleet_rig = FleetRig(rig, limits=Limits(excluded_after_reallocation_s=48 * 3600.0, reallocations_per_minute=10))
    fleet_rig.govern(replace(POLICY, max_nodes=20, max_scale_up=20))
    for _ in range(20):
        rig.add_job()
    fleet_rig.turn()
    came = fleet_rig.present()[:12]
    for each in came:
        assert fleet_rig.claim(each).lease
    waited(fleet_rig, 580)
    assert rig.rows(schema.reallocations) == []
    waited(fleet_rig, 40)
    fleet_rig.turns(5)
    assert len(rig.rows(schema.reallocations)) == 2, "a tenth of the fleet in an hour"


def test_the_ten_minutes_begin_when_the_instance_is_found_to_run(rig):
    """A provider may say that it runs since it was asked for."""
    fleet_rig = FleetRig(rig)
    fleet_rig.provider.delivers = False
    rig.add_job()
    fleet_rig.turn()
    fleet_rig.provider.add("i-1", InstanceState.STARTING)
    (instance,) = fleet_rig.present()
    waited(fleet_rig, 1200)
    assert instance.id in fleet_rig.provider.instances, "it is not billed yet"
    asked_at_ms = fleet_rig.instance(instance.id)["first_listed_at_ms"]
    running = replace(instance, state=InstanceState.RUNNING, running_since_ms=asked_at_ms)
    fleet_rig.provider.instances[instance.id] = running
    waited(fleet_rig, 580)
    assert instance.id in fleet_rig.provider.instances
    waited(fleet_rig, 60)
    assert instance.id not in fleet_rig.provider.instances


def test_a_node_that_ends_again_and_again_is_replaced_after_ten_minutes_though_it_is_heard_of_each_time(
    fleet_rig, rig
):
    fleet_rig.govern(
        replace(POLICY, max_nodes=1)
    )  # where more are allowed, another comes at once and this one leaves
    instance = asked_for(fleet_rig)
    for start in range(40):
        check(fleet_rig, instance, start=start)
        instance = restart(fleet_rig, instance)
        fleet_rig.turn()
        if instance.id not in fleet_rig.provider.instances:
            break
    (row,) = rig.rows(schema.reallocations)
    assert row["instance_id"] == instance.id
    assert 600 <= (row["at_ms"] - fleet_rig.instance(instance.id)["first_listed_at_ms"]) / 1000 <= 640


def test_a_machine_on_which_another_node_works_keeps_its_jobs(fleet_rig):
    """It has several GPUs, and one of them is broken."""
    instance = asked_for(fleet_rig)
    beside = replace(instance, id="beside")
    fleet_rig.provider.instances["beside"] = beside
    fleet_rig.provider.wanted = 2
    fleet_rig.turn()
    for _ in range(3):
        fleet_rig.claim(beside)
        instance = restart(fleet_rig, instance)
        fleet_rig.turn()
    assert fleet_rig.instance(instance.id)["failed_starts"] == 3
    assert state_of(fleet_rig, instance) is None


def test_bad_image_excludes_no_machine(rig):
    fleet_rig = FleetRig(rig, limits=Limits(excluded_after_reallocation_s=48 * 3600.0, reallocations_per_minute=10))
    fleet_rig.govern(replace(POLICY, max_nodes=20, max_scale_up=20))
    for _ in range(20):
        rig.add_job()
    fleet_rig.turn()
    waited(fleet_rig, 700)
    fleet_rig.turns(5)
    assert rig.rows(schema.reallocations) == []
    assert read_fleet(fleet_rig.ctx, ADMIN, "gpu").plan.stopped == "none of 20 nodes ever came"


def test_a_node_that_reported_its_checks_is_not_connected_before_it_asks_for_work(fleet_rig):
    instance = asked_for(fleet_rig)
    check(fleet_rig, instance)
    assert (
        get_job(fleet_rig.ctx, ADMIN, "job_000001").waiting_because == "no node for jobs of kind train is connected"
    )
    fleet_rig.claim(instance, start=1)
    assert "connected" not in (get_job(fleet_rig.ctx, ADMIN, "job_000001").waiting_because or "")


def test_a_node_that_never_asks_for_work_keeps_no_ban_alive(fleet_rig, rig):
    instance = asked_for(fleet_rig)
    job_id = "job_000001"
    fail(
        fleet_rig.ctx,
        fleet_rig.claim(instance).lease.attempt_id,
        FailAttempt(reason=Reason.CRASHED, message="it died"),
    )
    fleet_rig.govern(replace(POLICY, max_nodes=1))
    for number in range(12):
        rig.clock.advance_s(10)
        check(fleet_rig, Instance(id="other", state=InstanceState.RUNNING, machine_id="other"), start=number)
        lift_bans(fleet_rig.ctx)
        if fleet_rig.claim(instance).lease:
            return
    pytest.fail(f"the job {job_id} does not go back")


def test_a_node_that_gave_up_is_no_capacity_at_once(fleet_rig):
    instance = asked_for(fleet_rig)
    check(fleet_rig, instance)
    fleet_rig.turn()
    assert len(fleet_rig.present()) == 1, "its engine may be starting"
    check(fleet_rig, instance, leaving=True)
    fleet_rig.turn()
    assert len(fleet_rig.present()) == 2
