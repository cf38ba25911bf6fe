"""Places beside jobs at work: they are capacity for jobs that may join, while nodes take them."""

from dataclasses import replace

import pytest
from tests.fixtures.fleets import ToyFleet, ask_for_work, governed, node_of, with_fleets

from giornata.control.attempts.ending.reported_ends import release
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.protocol.node.work import ReleaseAttempt
from giornata.store import schema

POLICY = ScalingPolicy(max_nodes=5, idle_timeout_s=3600)


class SharedNode:
    """One node of a fleet, at a job that others may join."""

    def __init__(self, rig, *, places: int = 4, key: str | None = "k1") -> None:
        self.rig, self.provider = rig, ToyFleet()
        fleet = governed(self.provider, scaling=POLICY, places=places)
        self.ctx = rig.ctx = with_fleets(rig.ctx, {"gpu": fleet})
        rig.add_job(joint_key=key, created_at_ms=self.now_ms)
        self.turn()
        (self.instance,) = self.provider.instances.values()
        self.node = node_of(self.instance).model_copy(update={"places": places})
        self.lease = ask_for_work(rig, self.node, request="00000001").lease
        assert self.lease

    @property
    def now_ms(self) -> int:
        return self.rig.clock.now_ms()

    def turn(self) -> None:
        reconcile_fleet(self.ctx, "gpu")
        scale_fleet(self.ctx, "gpu")
        self.rig.clock.advance_s(1)

    def desired(self) -> int:
        self.turn()
        return self.rig.rows(schema.fleets, name="gpu")[0]["desired"]


def test_jobs_that_may_join_need_no_node_as_long_as_there_are_places(rig):
    bench = SharedNode(rig)
    for _ in range(3):
        rig.add_job(joint_key="k1", created_at_ms=bench.now_ms)
    assert bench.desired() == 1
    rig.add_job(joint_key="k1", created_at_ms=bench.now_ms)
    assert bench.desired() == 2


@pytest.mark.parametrize("why", ["one place", "another key", "alone", "at work alone"])
def test_jobs_that_cannot_join_a_batch_need_another_node(rig, why):
    bench = SharedNode(rig, places=1 if why == "one place" else 4, key=None if why == "at work alone" else "k1")
    key = {"another key": "k2", "alone": None}.get(why, "k1")
    rig.add_job(joint_key=key, created_at_ms=bench.now_ms)
    assert bench.desired() == 2


def test_a_place_that_nobody_gives_is_counted_for_a_minute_only(rig):
    """An engine may have less room than its node has places, and then never asks for a companion."""
    bench = SharedNode(rig)
    rig.add_job(joint_key="k1", created_at_ms=bench.now_ms)
    for _ in range(55):
        assert bench.desired() == 1
    for _ in range(10):
        bench.turn()
    assert bench.desired() == 2


def test_a_job_that_was_interrupted_waits_since_then(rig):
    bench = SharedNode(rig)
    rig.add_job(joint_key="k1", created_at_ms=bench.now_ms)
    bench.rig.claim(bench.node, joint_key="k1", request_id="request-00000002")
    (attempt,) = [each for each in rig.rows(schema.attempts) if each["id"] != bench.lease.attempt_id]
    rig.clock.advance_s(200)
    assert bench.desired() == 1
    release(bench.ctx, attempt["id"], ReleaseAttempt())
    assert bench.desired() == 1, "it joins again"


def test_a_job_that_failed_there_does_not_count_for_it(rig):
    bench = SharedNode(rig)
    job_id = rig.add_job(joint_key="k1", created_at_ms=bench.now_ms, interrupted=True)
    with rig.store.begin() as tx:
        ban = {"job_id": job_id, "machine_id": bench.instance.machine_id, "reason": "crashed", "at_ms": 1}
        tx.connection.execute(schema.bans.insert().values(ban))
    assert bench.desired() == 2


def test_a_node_that_leaves_takes_nobody_in(rig):
    bench = SharedNode(rig)
    rig.add_job(joint_key="k1", created_at_ms=bench.now_ms)
    with rig.store.begin() as tx:
        tx.connection.execute(schema.nodes.update().values(draining=True))
    assert bench.desired() == 2


def test_the_dearer_fleets_free_place_is_taken_before_the_cheap_one_is_called(rig):
    bench = SharedNode(rig)
    cheap = ToyFleet(price=1)
    bench.ctx = rig.ctx = with_fleets(
        bench.ctx, {**bench.ctx.fleets, "cheap": replace(governed(cheap, "cheap"), scaling=POLICY)}
    )
    rig.add_job(joint_key="k1", created_at_ms=bench.now_ms)
    for _ in range(3):
        reconcile_fleet(bench.ctx, "cheap")
        scale_fleet(bench.ctx, "cheap")
        bench.turn()
    assert list(cheap.instances) == []
