"""A node that ends before it asks for work starves no job, on the nodes of any driver.

A node reports its checks, and its engine does not start: the node ends. Where a provider starts the process again in
its place, `end_process(instance_id)` of the driver's module has it do so; elsewhere the process is only gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tests.contract.fleets.test_jobs_end import shop  # noqa: F401 - a fixture
from tests.contract.fleets.under_test import FleetUnderTest
from tests.fixtures.fleets import ask_for_work, governed, node_of, with_fleets
from tests.fixtures.work import NODE_CALLER, Workshop

from giornata.control.attempts.known_node import note_checks
from giornata.control.caller import Caller
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.jobs.read_jobs import get_job
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.domain.fleet_plan import ScalingPolicy
from giornata.protocol.admin import ROOT_PROJECT, Scope
from giornata.protocol.node_checks import NodeChecks
from giornata.protocol.work import Lease
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_admin")
TURN_S = 20.0
TURNS = 6  # two minutes


@dataclass
class Hall:
    """A server with one fleet, on some of whose machines no engine starts."""

    shop: Workshop
    under_test: FleetUnderTest
    bad: set[str] = field(default_factory=set)
    starts: int = 0

    def govern(self, most: int) -> None:
        fleet = governed(self.under_test.fleet, "gpu", scaling=ScalingPolicy(max_nodes=most))  # type: ignore[arg-type]
        self.shop.ctx = with_fleets(self.shop.ctx, {"gpu": fleet})

    def turns(self, count: int) -> Iterator[Lease]:
        """Each lease that a node gets, while time passes."""
        for _ in range(count):
            reconcile_fleet(self.shop.ctx, "gpu")
            scale_fleet(self.shop.ctx, "gpu")
            self.under_test.settle()
            reconcile_fleet(self.shop.ctx, "gpu")
            for instance in self.running():
                yield from self._node(instance)
            self.shop.clock.advance_s(TURN_S)

    def running(self) -> list[Instance]:
        return [each for each in self.under_test.fleet.list() if each.state is InstanceState.RUNNING]

    def _node(self, instance: Instance) -> Iterator[Lease]:
        """A process starts on the instance, and asks for work unless its engine does not start."""
        self.starts += 1
        node = node_of(instance, start=self.starts % 100)
        if instance.machine_id not in self.bad:
            lease = ask_for_work(self.shop, node, request=f"{self.starts:08d}").lease
            if lease is not None:
                yield lease
            return
        note_checks(self.shop.ctx, NODE_CALLER, NodeChecks(node=node, kinds=("train",)))
        self.shop.clock.advance_s(1)
        given_up = NodeChecks(node=node, kinds=("train",), shortcomings=("ended with status 64",), leaving=True)
        note_checks(self.shop.ctx, NODE_CALLER, given_up)
        end_process = getattr(self.under_test, "end_process", None)
        if end_process is not None:
            end_process(instance.id)


@pytest.fixture
def hall(shop: Workshop, renting: FleetUnderTest) -> Hall:  # noqa: F811 - the fixture
    return Hall(shop, renting)


def brought_up(hall: Hall, *, most: int) -> str:
    """A job, and the machine of the one node that came for it: no engine starts there."""
    hall.govern(most)
    hall.shop.add_job()
    reconcile_fleet(hall.shop.ctx, "gpu")
    scale_fleet(hall.shop.ctx, "gpu")
    hall.under_test.settle()
    (first,) = hall.running()
    assert first.machine_id is not None
    hall.bad = {first.machine_id}
    return first.machine_id


def test_a_job_goes_to_another_node_within_two_minutes_when_one_ends_before_it_asks_for_work(hall):
    bad = brought_up(hall, most=4)
    (lease,) = hall.turns(TURNS)
    (attempt,) = hall.shop.rows(schema.attempts, id=lease.attempt_id)
    assert attempt["machine_id"] != bad
    (struck,) = hall.shop.rows(schema.machines, machine_id=bad)
    assert struck["state"] != "ok"
    assert {each["reason"] for each in struck["recent_failures"]} == {"node_start"}
    assert len(hall.running()) <= 2, "one more is enough"


def test_the_job_says_why_it_waits_while_no_engine_starts(hall):
    bad = brought_up(hall, most=1)
    for _ in range(TURNS):
        assert list(hall.turns(1)) == []
        hall.bad = {bad, *(each.machine_id for each in hall.running() if each.machine_id)}
        because = get_job(hall.shop.ctx, ADMIN, "job_000001").waiting_because
        if "ended again and again before asking for work" in because:
            return
    pytest.fail(because)


def test_a_fleet_of_one_node_gets_another_machine_where_its_provider_gives_one(hall):
    bad = brought_up(hall, most=1)
    leases = list(hall.turns(TURNS))
    if not hall.under_test.fleet.limits.moves:
        assert leases == [], "its place is all that there is"
        return
    (attempt,) = hall.shop.rows(schema.attempts)
    assert (attempt["machine_id"] != bad, len(leases)) == (True, 1)


def test_a_node_that_never_says_anything_is_no_capacity_where_its_provider_tells(hall):
    """Its image cannot be pulled, or its program ends at once: nobody but the provider knows."""
    hall.govern(2)
    hall.shop.add_job()
    with hall.under_test.hold_up():
        for _ in range(TURNS):
            reconcile_fleet(hall.shop.ctx, "gpu")
            scale_fleet(hall.shop.ctx, "gpu")
            hall.under_test.settle_held_up()
            hall.shop.clock.advance_s(TURN_S)
        listed = hall.under_test.fleet.list()
        if not any(each.cannot_start or each.restarts for each in listed):
            pytest.skip("this provider lists nodes that wait and nodes that fail alike")
        (row,) = hall.shop.rows(schema.fleets)
        assert row["desired"] == 2
        because = get_job(hall.shop.ctx, ADMIN, "job_000001").waiting_because
        assert "ended again and again before asking for work" in because


def test_a_machine_on_which_a_node_comes_up_after_all_is_cleared(hall):
    bad = brought_up(hall, most=1)
    list(hall.turns(1 if hall.under_test.fleet.limits.moves else 3))
    hall.bad = set()
    list(hall.turns(4))
    assert [each for each in hall.shop.rows(schema.machines, machine_id=bad) if each["state"] == "quarantined"] == []
    (attempt,) = hall.shop.rows(schema.attempts)
    assert attempt["ended_at_ms"] is None
