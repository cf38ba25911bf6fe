"""A whole day on a fake SaladCloud: the real loops, store and claims, the driver, and nodes that come with tokens."""

from dataclasses import replace
from typing import Any

import pytest
from tests.fixtures.fleets import with_fleets
from tests.fixtures.salad_cloud import SaladCloud
from tests.fixtures.salad_group import FakeInstance
from tests.fixtures.salad_imds import ORGANIZATION_ID, SaladKeys, SaladWorkload
from tests.fixtures.salad_rented import Rented

from giornata.control.access.authenticate import authenticate
from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.context import GovernedFleet
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.domain.errors import FleetUnavailable
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.fleets.opening import identities_of
from giornata.protocol.node.work import Claim, ClaimReply, CompleteAttempt, Heartbeat, NodeInfo, Order

TURN_S = 30.0


class Day:
    """One fleet, one clock for the server and for the provider."""

    def __init__(self, rig: Any) -> None:
        self.rig, self.keys = rig, SaladKeys()
        self.rented = Rented(SaladCloud(now_s=rig.clock.now_ms() / 1000))
        fleet = self.rented.fleet(organization_id=ORGANIZATION_ID, keys_transport=self.keys.answer)
        # Nodes ask for work only when a test has them do so, which may be long after they came.
        policy = ScalingPolicy(max_nodes=5, idle_timeout_s=120, billed_startup_timeout_s=7200)
        governed = GovernedFleet(name="loras", driver="salad", fleet=fleet, scaling=policy)
        ctx = with_fleets(rig.ctx, {"loras": governed})
        rig.ctx = replace(ctx, identities=identities_of([fleet]))
        self._requests = 0

    def turn(self) -> None:
        reconcile_fleet(self.rig.ctx, "loras")
        scale_fleet(self.rig.ctx, "loras")
        reconcile_fleet(self.rig.ctx, "loras")
        self.advance(TURN_S)

    def advance(self, seconds: float) -> None:
        waited_s = self.rented.cloud.now_s - self.rig.clock.now_ms() / 1000
        self.rented.cloud.advance(seconds)
        self.rig.clock.advance_s(waited_s + seconds)

    def running(self) -> list[FakeInstance]:
        group = self.rented.cloud.groups.get("loras")
        instances = [] if group is None else group.instances
        return [each for each in instances if each.state(self.rented.cloud.now_s) == "running"]

    def until_running(self, count: int) -> list[FakeInstance]:
        for _ in range(400):
            self.turn()
            if len(self.running()) == count:
                return self.running()
        raise AssertionError(f"never {count}, but {len(self.running())}")

    def claim(self, instance: FakeInstance) -> ClaimReply:
        """The node on it asks for work, with the token that its machine gives it."""
        self._requests += 1
        workload = SaladWorkload(keys=self.keys, now_s=self.rented.cloud.now_s, machine_id=instance.machine_id)
        node = NodeInfo(
            node_id=f"node_{instance.id[:8]}",
            machine_id=instance.machine_id,
            instance_id=instance.id,
            name="n",
            fleet="loras",
            price_micro_usd_per_hour=160_000,
        )
        caller = authenticate(self.rig.ctx, workload.token())
        wanted = Claim(request_id=f"request-{self._requests:06d}", node=node, kinds=("train",))
        return claim_once(self.rig.ctx, caller, wanted)

    def finish(self, reply: ClaimReply) -> None:
        assert reply.lease is not None
        self.rig.artifact(reply.lease, "lora.safetensors")
        complete(self.rig.ctx, reply.lease.attempt_id, CompleteAttempt(step=2))


@pytest.fixture
def day(rig) -> Day:
    return Day(rig)


def test_nodes_are_rented_for_jobs_and_let_go_when_they_are_done(day, rig):
    day.turn()
    assert day.rented.cloud.groups == {}, "nothing is rented for nothing"
    jobs = [rig.add_job(), rig.add_job()]
    first, second = day.until_running(2)
    day.finish(day.claim(first))
    lease = day.claim(second)
    assert lease.lease is not None
    for _ in range(20):
        day.turn()
        assert heartbeat(rig.ctx, lease.lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE
    assert day.claim(first).lease is None
    assert second.id in {each.id for each in day.running()}, "who works is not taken away"
    day.finish(lease)
    assert [rig.job(job)["state"] for job in jobs] == ["succeeded", "succeeded"]
    assert day.until_running(0) == []
    group = day.rented.group
    assert group.status == "stopped"
    assert group.billed_s > 0
    billed_s = group.billed_s
    day.advance(3600)
    assert group.billed_s == billed_s, "at rest it costs nothing"
    assert group.version == 1


def test_the_idle_one_of_two_goes_and_the_working_one_stays(day, rig):
    rig.add_job()
    rig.add_job()
    first, second = day.until_running(2)
    working = day.claim(first)
    assert working.lease is not None
    day.finish(day.claim(second))
    (left,) = day.until_running(1)
    assert left.id == first.id
    said = {path.rsplit("/", 1)[-1] for method, path in day.rented.cloud.asked if method == "POST"}
    assert said == {"containers", "sce-gpu-availability"}, "made once, and asked why they did not come at first"


def reasons(rig: Any) -> str:
    with rig.store.read() as tx:
        return "; ".join(tx.fleets.get("loras").plan["reasons"])


def test_quota_used_by_others_is_not_asked_for_and_is_reported(day, rig):
    day.rented.cloud.quotas |= {"container_replicas_quota": 10, "container_replicas_used": 8}
    for _ in range(3):
        rig.add_job()
    assert len(day.until_running(2)) == 2
    assert "others use 8 of them: at most 2 are for this fleet" in reasons(rig)
    assert day.rented.group.replicas == 2


def test_jobs_wait_while_others_use_the_whole_quota_and_start_when_it_frees(day, rig):
    day.rented.cloud.quotas |= {"container_replicas_quota": 10, "container_replicas_used": 10}
    rig.add_job()
    for _ in range(10):
        day.turn()
    assert day.rented.cloud.groups == {}
    assert "others use 10 of them: at most 0 are for this fleet" in reasons(rig)
    day.rented.cloud.quotas["container_replicas_used"] = 9
    assert len(day.until_running(1)) == 1


def test_quota_taken_by_others_meanwhile_ends_no_working_node(day, rig):
    day.rented.cloud.quotas["container_replicas_quota"] = 10
    for _ in range(2):
        rig.add_job()
    leases = [day.claim(each).lease for each in day.until_running(2)]
    day.advance(61)
    reconcile_fleet(rig.ctx, "loras")
    day.rented.cloud.quotas["container_replicas_used"] = 8
    for _ in range(3):
        rig.add_job()
    assert "5 nodes" in scale_fleet(rig.ctx, "loras"), "asked for by the quota as it was"
    assert day.rented.group.replicas == 2
    for _ in range(20):
        day.turn()
        orders = {heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1)).order for lease in leases}
        assert orders == {Order.CONTINUE}
    assert len(day.running()) == 2


def test_an_hour_without_the_provider_changes_nothing_and_ends_nobody(day, rig):
    rig.add_job()
    (instance,) = day.until_running(1)
    lease = day.claim(instance)
    with day.rented.cloud.away():
        for _ in range(20):
            with pytest.raises(FleetUnavailable):
                reconcile_fleet(rig.ctx, "loras")
            day.advance(180)
    day.turn()
    assert [each.id for each in day.running()] == [instance.id]
    assert lease.lease is not None
