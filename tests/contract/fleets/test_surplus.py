"""On every driver: what no job waits for goes, the node at work stays, and what is stuck is not replaced in vain."""

import time

import pytest
from tests.contract.fleets.test_jobs_end import TURN_S, shop  # noqa: F401 - a fixture
from tests.contract.fleets.under_test import FleetUnderTest
from tests.fixtures.fleets import ask_for_work, governed, node_of, with_fleets
from tests.fixtures.work import Workshop

from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.reported_ends import release
from giornata.control.caller import Caller
from giornata.control.fleets.nodes import drain_node
from giornata.control.fleets.operator_actions import pause_fleet, resume_fleet
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import Instance
from giornata.domain.fleet_plan import ScalingPolicy
from giornata.protocol.admin import ROOT_PROJECT, Scope
from giornata.protocol.work import Heartbeat, Lease, ReleaseAttempt
from giornata.store import schema

OPERATOR = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_admin")
IDLE_TURNS = 5  # as many turns as `idle_timeout_s` is long
POLICY = ScalingPolicy(max_nodes=3, idle_timeout_s=IDLE_TURNS * TURN_S, startup_timeout_s=8 * TURN_S)


class Fleet:
    """A server with one fleet. Its nodes say nothing but those that `work`, which beat at each turn."""

    def __init__(self, shop: Workshop, under_test: FleetUnderTest) -> None:  # noqa: F811
        self.shop, self.under_test = shop, under_test
        # Some providers say by their own clock since when an instance runs.
        shop.clock.advance_s(max(0.0, time.time() - shop.clock.now_ms() / 1000))
        fleet = governed(under_test.fleet, "gpu", scaling=POLICY)  # type: ignore[arg-type]
        shop.ctx = with_fleets(shop.ctx, {"gpu": fleet})
        self.leases: list[Lease] = []

    def turns(self, count: int) -> None:
        for _ in range(count):
            reconcile_fleet(self.shop.ctx, "gpu")
            scale_fleet(self.shop.ctx, "gpu")
            self.under_test.settle()
            reconcile_fleet(self.shop.ctx, "gpu")
            for lease in self.leases:
                heartbeat(self.shop.ctx, lease.attempt_id, Heartbeat(step=1))
            self.shop.clock.advance_s(TURN_S)

    def work(self, instance: Instance) -> None:
        lease = ask_for_work(self.shop, node_of(instance), request=f"{len(self.leases):08d}").lease
        assert lease is not None
        self.leases.append(lease)

    def present(self) -> list[Instance]:
        """By name: where the highest number goes first, the first stays the longest."""
        return sorted(self.under_test.fleet.list(), key=lambda each: (each.name, each.id))

    def why_reallocated(self) -> set[str]:
        return {row["reason"] for row in self.shop.rows(schema.reallocations)}


def with_one_at_work(shop: Workshop, renting: FleetUnderTest) -> tuple[Fleet, Instance]:  # noqa: F811
    """Three nodes were asked for; one works, and the others have not said a word."""
    fleet = Fleet(shop, renting)
    for _ in range(3):
        shop.add_job()
    fleet.turns(2)
    working, *others = fleet.present()
    assert len(others) == 2
    fleet.work(working)
    return fleet, working


def cancel_what_waits(shop: Workshop, *, but: int = 0) -> None:  # noqa: F811
    waiting = [row["id"] for row in shop.rows(schema.jobs, state="queued")][but:]
    with shop.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().where(schema.jobs.c.id.in_(waiting)).values(state="canceled"))


def test_what_no_job_waits_for_goes_while_another_node_works(shop, renting):  # noqa: F811
    fleet, working = with_one_at_work(shop, renting)
    cancel_what_waits(shop, but=1)
    fleet.turns(2)
    assert len(fleet.present()) == 3
    fleet.turns(IDLE_TURNS)
    ids = [each.id for each in fleet.present()]
    assert len(ids) == 2
    assert working.id in ids, "one job waits, and one is at work"


def test_what_is_stuck_and_not_needed_is_not_replaced(shop, renting):  # noqa: F811
    fleet, working = with_one_at_work(shop, renting)
    cancel_what_waits(shop)
    fleet.turns(20)
    kept = {"it was asked to end, and its provider let another go instead"}
    assert fleet.why_reallocated() <= (set() if renting.chooses_who_leaves else kept)
    left = [each.id for each in fleet.present()]
    assert working.id in left
    assert len(left) == 1 or not renting.chooses_who_leaves


def test_a_paused_fleet_empties_and_comes_back(shop, renting):  # noqa: F811
    fleet, working = with_one_at_work(shop, renting)
    pause_fleet(shop.ctx, OPERATOR, "gpu")
    fleet.turns(4)
    assert [each.id for each in fleet.present()] == [working.id], "it writes its checkpoint first"
    release(shop.ctx, fleet.leases.pop().attempt_id, ReleaseAttempt())
    fleet.turns(4)
    assert fleet.present() == []
    resume_fleet(shop.ctx, OPERATOR, "gpu")
    fleet.turns(3)
    assert len(fleet.present()) == 3


def test_a_drained_node_ends_and_no_other(shop, renting):  # noqa: F811
    if not renting.chooses_who_leaves:
        pytest.skip("this provider chooses by itself who goes")
    fleet, working = with_one_at_work(shop, renting)
    others = {each.id for each in fleet.present()} - {working.id}
    drain_node(shop.ctx, OPERATOR, node_of(working).node_id)
    release(shop.ctx, fleet.leases.pop().attempt_id, ReleaseAttempt())
    cancel_what_waits(shop, but=2)
    fleet.turns(3)
    assert {each.id for each in fleet.present()} == others
