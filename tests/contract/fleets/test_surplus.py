"""On every driver: what no job waits for goes, the node at work stays, and what is stuck is not replaced in vain."""

import time

import pytest
from tests.contract.fleets.test_jobs_end import TURN_S, rig  # noqa: F401 - a fixture
from tests.contract.fleets.under_test import FleetUnderTest
from tests.fixtures.fleets import ask_for_work, governed, node_of, with_fleets
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.fleets.nodes import drain_node
from giornata.control.fleets.operator_actions import pause_fleet, resume_fleet
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import Instance
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.protocol.node.work import Heartbeat, Lease, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

OPERATOR = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")
IDLE_TURNS = 5  # as many turns as `idle_timeout_s` is long
POLICY = ScalingPolicy(max_nodes=3, idle_timeout_s=IDLE_TURNS * TURN_S, startup_timeout_s=8 * TURN_S)


class ServedFleet:
    """A server with one fleet. Its nodes say nothing but those that `work`, which beat at each turn."""

    def __init__(self, rig: StoreRig, under_test: FleetUnderTest) -> None:  # noqa: F811
        self.rig, self.under_test = rig, under_test
        # Some providers say by their own clock since when an instance runs.
        rig.clock.advance_s(max(0.0, time.time() - rig.clock.now_ms() / 1000))
        fleet = governed(under_test.fleet, "gpu", scaling=POLICY)  # type: ignore[arg-type]
        rig.ctx = with_fleets(rig.ctx, {"gpu": fleet})
        self.leases: list[Lease] = []

    def turns(self, count: int) -> None:
        for _ in range(count):
            reconcile_fleet(self.rig.ctx, "gpu")
            scale_fleet(self.rig.ctx, "gpu")
            self.under_test.settle()
            reconcile_fleet(self.rig.ctx, "gpu")
            for lease in self.leases:
                heartbeat(self.rig.ctx, lease.attempt_id, Heartbeat(step=1))
            self.rig.clock.advance_s(TURN_S)

    def work(self, instance: Instance) -> None:
        lease = ask_for_work(self.rig, node_of(instance), request=f"{len(self.leases):08d}").lease
        assert lease is not None
        self.leases.append(lease)

    def present(self) -> list[Instance]:
        """By name: where the highest number goes first, the first stays the longest."""
        return sorted(self.under_test.fleet.list(), key=lambda each: (each.name, each.id))

    def why_reallocated(self) -> set[str]:
        return {row["reason"] for row in self.rig.rows(schema.reallocations)}


def with_one_at_work(rig: StoreRig, renting: FleetUnderTest) -> tuple[ServedFleet, Instance]:  # noqa: F811
    """Three nodes were asked for; one works, and the others have not said a word."""
    fleet = ServedFleet(rig, renting)
    for _ in range(3):
        rig.add_job()
    fleet.turns(2)
    working, *others = fleet.present()
    assert len(others) == 2
    fleet.work(working)
    return fleet, working


def cancel_what_waits(rig: StoreRig, *, but: int = 0) -> None:  # noqa: F811
    waiting = [row["id"] for row in rig.rows(schema.jobs, state="queued")][but:]
    with rig.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().where(schema.jobs.c.id.in_(waiting)).values(state="canceled"))


def test_nodes_that_no_job_waits_for_end_while_working_node_stays(rig, renting):  # noqa: F811
    fleet, working = with_one_at_work(rig, renting)
    cancel_what_waits(rig, but=1)
    fleet.turns(2)
    assert len(fleet.present()) == 3
    fleet.turns(IDLE_TURNS)
    ids = [each.id for each in fleet.present()]
    assert len(ids) == 2
    assert working.id in ids, "one job waits, and one is at work"


def test_stuck_node_that_no_job_needs_is_not_replaced(rig, renting):  # noqa: F811
    fleet, working = with_one_at_work(rig, renting)
    cancel_what_waits(rig)
    fleet.turns(20)
    kept = {"it was asked to end, and its provider let another go instead"}
    assert fleet.why_reallocated() <= (set() if renting.chooses_who_leaves else kept)
    left = [each.id for each in fleet.present()]
    assert working.id in left
    assert len(left) == 1 or not renting.chooses_who_leaves


def test_a_paused_fleet_empties_and_comes_back(rig, renting):  # noqa: F811
    fleet, working = with_one_at_work(rig, renting)
    pause_fleet(rig.ctx, OPERATOR, "gpu")
    fleet.turns(4)
    assert [each.id for each in fleet.present()] == [working.id], "it writes its checkpoint first"
    release(rig.ctx, fleet.leases.pop().attempt_id, ReleaseAttempt())
    fleet.turns(4)
    assert fleet.present() == []
    resume_fleet(rig.ctx, OPERATOR, "gpu")
    fleet.turns(3)
    assert len(fleet.present()) == 3


def test_a_drained_node_ends_and_no_other(rig, renting):  # noqa: F811
    if not renting.chooses_who_leaves:
        pytest.skip("this provider chooses by itself who goes")
    fleet, working = with_one_at_work(rig, renting)
    others = {each.id for each in fleet.present()} - {working.id}
    drain_node(rig.ctx, OPERATOR, node_of(working).node_id)
    release(rig.ctx, fleet.leases.pop().attempt_id, ReleaseAttempt())
    cancel_what_waits(rig, but=2)
    fleet.turns(3)
    assert {each.id for each in fleet.present()} == others
