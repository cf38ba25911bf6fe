"""Starts that fail: what is written down of them, what they say against machines, and when a fleet stops trying."""

from dataclasses import replace

import pytest
from tests.fixtures.fleets import node_of
from tests.fixtures.work import NODE_CALLER
from tests.fixtures.yard import POLICY, Yard

from giornata.control.attempts.known_node import note_checks
from giornata.control.attempts.lift_bans import lift_bans
from giornata.control.attempts.reported_ends import fail
from giornata.control.caller import Caller
from giornata.control.fleets.read_fleets import read_fleet
from giornata.control.jobs.read_jobs import get_job
from giornata.control.ports.fleet import Instance, InstanceState, Limits
from giornata.domain.reasons import Reason
from giornata.protocol.admin import ROOT_PROJECT, Scope
from giornata.protocol.node_checks import NodeChecks
from giornata.protocol.work import FailAttempt
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_admin")


@pytest.fixture
def yard(shop) -> Yard:
    """A provider that starts a process again in its place."""
    return Yard(shop, limits=Limits(moves=False))


def restart(yard: Yard, instance: Instance, *, as_another: bool = False) -> Instance:
    """The process on the instance ends by itself, and comes again: perhaps as an instance of its own."""
    restarts = (instance.restarts or 0) + 1
    again = replace(instance, restarts=restarts, id=f"{instance.id}x" if as_another else instance.id)
    del yard.provider.instances[instance.id]
    yard.provider.instances[again.id] = again
    yard.shop.clock.advance_s(20)
    return again


def check(yard: Yard, instance: Instance, *, start: int = 0, leaving: bool = False) -> None:
    node, why = node_of(instance, start=start), ("no engine",) if leaving else ()
    checks = NodeChecks(node=node, kinds=("train",), shortcomings=why, leaving=leaving)
    note_checks(yard.ctx, NODE_CALLER, checks)


def state_of(yard: Yard, instance: Instance) -> str | None:
    rows = yard.shop.rows(schema.machines, machine_id=instance.machine_id)
    return rows[0]["state"] if rows else None


def asked_for(yard: Yard) -> Instance:
    yard.shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    return instance


def waited(yard: Yard, seconds: int) -> None:
    """Time passes, and somebody looks now and then."""
    for _ in range(seconds // 20):
        yard.shop.clock.advance_s(19)
        yard.turn()


@pytest.mark.parametrize("as_another", [False, True])
def test_two_starts_that_failed_are_counted_held_against_the_machine_and_no_capacity(yard, as_another):
    instance = asked_for(yard)
    for failed, state in ((1, "probation"), (2, "quarantined")):
        instance = restart(yard, instance, as_another=as_another)
        yard.turn()
        row = yard.instance(instance.id)
        assert (row["restarts"], row["failed_starts"]) == (failed, failed)
        assert state_of(yard, instance) == state
    assert len(yard.present()) == 2


def test_a_restart_of_a_node_that_has_asked_for_work_is_held_against_nobody(yard):
    instance = asked_for(yard)
    for start in range(3):
        yard.claim(instance, start=start)
        instance = restart(yard, instance)
        yard.turn()
        assert yard.instance(instance.id)["failed_starts"] == 0
    assert state_of(yard, instance) is None


@pytest.mark.parametrize("as_another", [False, True])
def test_one_that_was_told_to_leave_has_not_failed_to_start(yard, shop, as_another):
    instance = asked_for(yard)
    shop.clock.advance_s(100)
    yard.govern(replace(POLICY, max_nodes=0))
    yard.provider.stubborn = {instance.id}
    yard.turn()
    for _ in range(1 if as_another else 4):
        instance = restart(yard, instance, as_another=as_another)
        yard.provider.stubborn = {instance.id}
        yard.turn()
    assert state_of(yard, instance) is None


def test_what_happened_while_nobody_looked_is_held_against_nobody(yard, shop):
    """Nodes end when they find no server for a while, and are started again and again."""
    instance = asked_for(yard)
    yard.claim(instance)
    yard.turn()
    shop.clock.advance_s(400)
    again = replace(instance, restarts=7)
    yard.provider.instances[instance.id] = again
    yard.turn()
    row = yard.instance(instance.id)
    assert (row["restarts"], row["failed_starts"], state_of(yard, instance)) == (7, 0, None)
    yard.turns(61)  # it is written down once a minute that it is there
    restart(yard, again)
    yard.turn()
    assert yard.instance(instance.id)["failed_starts"] == 1


def test_a_node_that_comes_up_after_all_clears_its_machine(yard):
    instance = asked_for(yard)
    for _ in range(2):
        instance = restart(yard, instance)
        yard.turn()
    assert state_of(yard, instance) == "quarantined"
    yard.claim(instance)
    yard.turn()
    assert state_of(yard, instance) == "ok"
    assert yard.instance(instance.id)["failed_starts"] == 0


def test_what_the_provider_cannot_start_is_no_capacity_and_says_nothing_against_the_machine(yard):
    instance = asked_for(yard)
    yard.provider.instances[instance.id] = replace(
        instance, state=InstanceState.STARTING, restarts=0, cannot_start=True
    )
    yard.turn()
    yard.turn()
    assert len(yard.present()) == 2
    assert state_of(yard, instance) is None


def test_where_all_machines_fail_alike_none_is_to_blame_and_the_fleet_stops(yard, shop):
    for _ in range(4):
        shop.add_job()
    yard.govern(replace(POLICY, max_nodes=9, max_scale_up=3))
    yard.turn()
    yard.turn()
    found = yard.present()
    for _ in range(2):
        found = [restart(yard, each) for each in found]
        yard.turn()
    assert {state_of(yard, each) for each in found} <= {None, "ok"}
    yard.turns(300)
    assert len(yard.present()) == len(found), "no more are asked for"
    fleet = read_fleet(yard.ctx, ADMIN, "gpu")
    assert fleet.plan.stopped == f"none of {len(found)} nodes ever came"
    assert fleet.plan.stopped in get_job(yard.ctx, ADMIN, "job_000001").waiting_because
    yard.claim(found[0])
    yard.claim(found[1])
    yard.turn()
    assert read_fleet(yard.ctx, ADMIN, "gpu").plan.stopped == ""


def test_nodes_that_are_billed_and_never_come_are_replaced_after_ten_minutes_within_the_reapers_share(shop):
    """Twelve of twenty came. The provider would allow ten a minute."""
    yard = Yard(shop, limits=Limits(excluded_after_reallocation_s=48 * 3600.0, reallocations_per_minute=10))
    yard.govern(replace(POLICY, max_nodes=20, max_scale_up=20))
    for _ in range(20):
        shop.add_job()
    yard.turn()
    came = yard.present()[:12]
    for each in came:
        assert yard.claim(each).lease
    waited(yard, 580)
    assert shop.rows(schema.reallocations) == []
    waited(yard, 40)
    yard.turns(5)
    assert len(shop.rows(schema.reallocations)) == 2, "a tenth of the fleet in an hour"


def test_the_ten_minutes_begin_when_the_instance_is_found_to_run(shop):
    """A provider may say that it runs since it was asked for."""
    yard = Yard(shop)
    yard.provider.delivers = False
    shop.add_job()
    yard.turn()
    yard.provider.add("i-1", InstanceState.STARTING)
    (instance,) = yard.present()
    waited(yard, 1200)
    assert instance.id in yard.provider.instances, "it is not billed yet"
    asked_at_ms = yard.instance(instance.id)["first_listed_at_ms"]
    running = replace(instance, state=InstanceState.RUNNING, running_since_ms=asked_at_ms)
    yard.provider.instances[instance.id] = running
    waited(yard, 580)
    assert instance.id in yard.provider.instances
    waited(yard, 60)
    assert instance.id not in yard.provider.instances


def test_a_node_that_ends_again_and_again_is_replaced_after_ten_minutes_though_it_is_heard_of_each_time(yard, shop):
    yard.govern(replace(POLICY, max_nodes=1))  # where more are allowed, another comes at once and this one leaves
    instance = asked_for(yard)
    for start in range(40):
        check(yard, instance, start=start)
        instance = restart(yard, instance)
        yard.turn()
        if instance.id not in yard.provider.instances:
            break
    (row,) = shop.rows(schema.reallocations)
    assert row["instance_id"] == instance.id
    assert 600 <= (row["at_ms"] - yard.instance(instance.id)["first_listed_at_ms"]) / 1000 <= 640


def test_a_machine_on_which_another_node_works_keeps_its_jobs(yard):
    """It has several GPUs, and one of them is broken."""
    instance = asked_for(yard)
    beside = replace(instance, id="beside")
    yard.provider.instances["beside"] = beside
    yard.provider.wanted = 2
    yard.turn()
    for _ in range(3):
        yard.claim(beside)
        instance = restart(yard, instance)
        yard.turn()
    assert yard.instance(instance.id)["failed_starts"] == 3
    assert state_of(yard, instance) is None


def test_one_bad_image_excludes_no_machine(shop):
    yard = Yard(shop, limits=Limits(excluded_after_reallocation_s=48 * 3600.0, reallocations_per_minute=10))
    yard.govern(replace(POLICY, max_nodes=20, max_scale_up=20))
    for _ in range(20):
        shop.add_job()
    yard.turn()
    waited(yard, 700)
    yard.turns(5)
    assert shop.rows(schema.reallocations) == []
    assert read_fleet(yard.ctx, ADMIN, "gpu").plan.stopped == "none of 20 nodes ever came"


def test_a_node_that_reported_its_checks_is_not_connected_before_it_asks_for_work(yard):
    instance = asked_for(yard)
    check(yard, instance)
    assert get_job(yard.ctx, ADMIN, "job_000001").waiting_because == "no node for jobs of kind train is connected"
    yard.claim(instance, start=1)
    assert "connected" not in (get_job(yard.ctx, ADMIN, "job_000001").waiting_because or "")


def test_a_node_that_never_asks_for_work_keeps_no_ban_alive(yard, shop):
    instance = asked_for(yard)
    job_id = "job_000001"
    fail(yard.ctx, yard.claim(instance).lease.attempt_id, FailAttempt(reason=Reason.CRASHED, message="it died"))
    yard.govern(replace(POLICY, max_nodes=1))
    for number in range(12):
        shop.clock.advance_s(10)
        check(yard, Instance(id="other", state=InstanceState.RUNNING, machine_id="other"), start=number)
        lift_bans(yard.ctx)
        if yard.claim(instance).lease:
            return
    pytest.fail(f"the job {job_id} does not go back")


def test_a_node_that_gave_up_is_no_capacity_at_once(yard):
    instance = asked_for(yard)
    check(yard, instance)
    yard.turn()
    assert len(yard.present()) == 1, "its engine may be starting"
    check(yard, instance, leaving=True)
    yard.turn()
    assert len(yard.present()) == 2
