"""A node that ends before it asks for work starves no job, on the nodes of any driver.

A node reports its checks, and its engine does not start: the node ends. Where a provider starts the process again in
its place, `end_process(instance_id)` of the driver's module has it do so; elsewhere the process is only gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tests.contract.fleets.test_jobs_end import rig  # noqa: F401 - a fixture
from tests.contract.fleets.under_test import FleetUnderTest
from tests.fixtures.fleets import ask_for_work, governed, node_of, with_fleets
from tests.fixtures.store_rig import NODE_CALLER, StoreRig

from giornata.control.attempts.claiming.known_node import note_checks
from giornata.control.caller import Caller
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.protocol.node.node_checks import NodeChecks
from giornata.protocol.node.work import Lease
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")
TURN_S = 20.0
TURNS = 6  # two minutes


@dataclass
class FailingFleet:
    """A server with one fleet, on some of whose machines no engine starts."""

    rig: StoreRig
    under_test: FleetUnderTest
    bad: set[str] = field(default_factory=set)
    starts: int = 0

    def govern(self, most: int) -> None:
        fleet = governed(self.under_test.fleet, "gpu", scaling=ScalingPolicy(max_nodes=most))  # type: ignore[arg-type]
        self.rig.ctx = with_fleets(self.rig.ctx, {"gpu": fleet})

    def turns(self, count: int) -> Iterator[Lease]:
        """Each lease that a node gets, while time passes."""
        for _ in range(count):
            reconcile_fleet(self.rig.ctx, "gpu")
            scale_fleet(self.rig.ctx, "gpu")
            self.under_test.settle()
            reconcile_fleet(self.rig.ctx, "gpu")
            for instance in self.running():
                yield from self._node(instance)
            self.rig.clock.advance_s(TURN_S)

    def running(self) -> list[Instance]:
        return [each for each in self.under_test.fleet.list() if each.state is InstanceState.RUNNING]

    def _node(self, instance: Instance) -> Iterator[Lease]:
        """A process starts on the instance, and asks for work unless its engine does not start."""
        self.starts += 1
        node = node_of(instance, start=self.starts % 100)
        if instance.machine_id not in self.bad:
            lease = ask_for_work(self.rig, node, request=f"{self.starts:08d}").lease
            if lease is not None:
                yield lease
            return
        note_checks(self.rig.ctx, NODE_CALLER, NodeChecks(node=node, kinds=("train",)))
        self.rig.clock.advance_s(1)
        given_up = NodeChecks(node=node, kinds=("train",), shortcomings=("ended with status 64",), leaving=True)
        note_checks(self.rig.ctx, NODE_CALLER, given_up)
        end_process = getattr(self.under_test, "end_process", None)
        if end_process is not None:
            end_process(instance.id)


@pytest.fixture
def joint_rig(rig: StoreRig, renting: FleetUnderTest) -> FailingFleet:  # noqa: F811 - the fixture
    return FailingFleet(rig, renting)


def brought_up(joint_rig: FailingFleet, *, most: int) -> str:
    """A job, and the machine of the one node that came for it: no engine starts there."""
    joint_rig.govern(most)
    joint_rig.rig.add_job()
    reconcile_fleet(joint_rig.rig.ctx, "gpu")
    scale_fleet(joint_rig.rig.ctx, "gpu")
    joint_rig.under_test.settle()
    (first,) = joint_rig.running()
    assert first.machine_id is not None
    joint_rig.bad = {first.machine_id}
    return first.machine_id


def test_a_job_goes_to_another_node_within_two_minutes_when_one_ends_before_it_asks_for_work(joint_rig):
    bad = brought_up(joint_rig, most=4)
    (lease,) = joint_rig.turns(TURNS)
    (attempt,) = joint_rig.rig.rows(schema.attempts, id=lease.attempt_id)
    assert attempt["machine_id"] != bad
    (struck,) = joint_rig.rig.rows(schema.machines, machine_id=bad)
    assert struck["state"] != "ok"
    assert {each["reason"] for each in struck["recent_failures"]} == {"node_start"}
    assert len(joint_rig.running()) <= 2, "one more is enough"


def test_the_job_says_why_it_waits_while_no_engine_starts(joint_rig):
    bad = brought_up(joint_rig, most=1)
    for _ in range(TURNS):
        assert list(joint_rig.turns(1)) == []
        joint_rig.bad = {bad, *(each.machine_id for each in joint_rig.running() if each.machine_id)}
        because = get_job(joint_rig.rig.ctx, ADMIN, "job_000001").waiting_because
        if "ended again and again before asking for work" in because:
            return
    pytest.fail(because)


def test_a_fleet_of_one_node_gets_another_machine_where_its_provider_gives_one(joint_rig):
    bad = brought_up(joint_rig, most=1)
    leases = list(joint_rig.turns(TURNS))
    if not joint_rig.under_test.fleet.limits.moves:
        assert leases == [], "its place is all that there is"
        return
    (attempt,) = joint_rig.rig.rows(schema.attempts)
    assert (attempt["machine_id"] != bad, len(leases)) == (True, 1)


def test_a_node_that_never_says_anything_is_no_capacity_where_its_provider_tells(joint_rig):
    """Its image cannot be pulled, or its program ends at once: nobody but the provider knows."""
    joint_rig.govern(2)
    joint_rig.rig.add_job()
    with joint_rig.under_test.hold_up():
        for _ in range(TURNS):
            reconcile_fleet(joint_rig.rig.ctx, "gpu")
            scale_fleet(joint_rig.rig.ctx, "gpu")
            joint_rig.under_test.settle_held_up()
            joint_rig.rig.clock.advance_s(TURN_S)
        listed = joint_rig.under_test.fleet.list()
        if not any(each.cannot_start or each.restarts for each in listed):
            pytest.skip("this provider lists nodes that wait and nodes that fail alike")
        (row,) = joint_rig.rig.rows(schema.fleets)
        assert row["desired"] == 2
        because = get_job(joint_rig.rig.ctx, ADMIN, "job_000001").waiting_because
        assert "ended again and again before asking for work" in because


def test_a_machine_on_which_a_node_comes_up_after_all_is_cleared(joint_rig):
    bad = brought_up(joint_rig, most=1)
    list(joint_rig.turns(1 if joint_rig.under_test.fleet.limits.moves else 3))
    joint_rig.bad = set()
    list(joint_rig.turns(4))
    assert [
        each for each in joint_rig.rig.rows(schema.machines, machine_id=bad) if each["state"] == "quarantined"
    ] == []
    (attempt,) = joint_rig.rig.rows(schema.attempts)
    assert attempt["ended_at_ms"] is None
