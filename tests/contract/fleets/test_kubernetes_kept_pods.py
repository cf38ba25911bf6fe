"""The cluster chooses which pods end: whoever was meant to end and is kept is in no job's way."""

import pytest
from tests.contract.fleets.test_jobs_end import BoundedFleet, rig  # noqa: F401
from tests.fixtures.kubernetes_under_test import strict_cluster

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import release
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import InstanceState
from giornata.protocol.node.work import CompleteAttempt, ReleaseAttempt


@pytest.mark.parametrize(
    ("kind", "by_cost"), [("Deployment", False), ("StatefulSet", True)], ids=["version 1.20", "StatefulSet"]
)
def test_a_cluster_that_ends_the_node_at_work_keeps_no_job_waiting(rig, tmp_path, kind, by_cost):  # noqa: F811
    with strict_cluster(tmp_path, workload_kind=kind) as it:
        it.controllers.by_cost = by_cost
        installation = BoundedFleet(rig, it, most=3)
        for _ in range(3):
            rig.add_job()
        leases, held = installation.leases(), {}
        while len(held) < 3:
            lease, machine_id = next(leases)
            held[machine_id] = lease
        in_order = sorted(it.fleet.list(), key=lambda each: each.name)
        victim = in_order[0] if kind == "Deployment" else in_order[-1]
        before = held.pop(victim.machine_id)
        for lease in held.values():
            complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1))
        again, _ = next(leases)
        assert again.job_id == before.job_id
        assert victim.id not in {each.id for each in it.fleet.list()}, "it was the one that the cluster took"
        assert complete(rig.ctx, again.attempt_id, CompleteAttempt(step=1)).job_state == "succeeded"


def test_a_pod_that_does_not_run_yet_goes_first_and_the_one_that_was_named_is_replaced(rig, tmp_path):  # noqa: F811
    """A pod without a machine is ranked before every deletion cost."""
    with strict_cluster(tmp_path) as it:
        installation = BoundedFleet(rig, it, most=2)
        job_id = rig.add_job()
        leases = installation.leases()
        lease, _ = next(leases)
        (named,) = it.fleet.list()
        release(rig.ctx, lease.attempt_id, ReleaseAttempt())
        it.machines.full = True
        it.fleet.desired(2)
        it.settle()
        assert [each.state for each in it.fleet.list()].count(InstanceState.STARTING) == 1
        asked = {"leaving_at_ms": rig.clock.now_ms(), "leaving_reason": "", "ended_at_ms": rig.clock.now_ms()}
        with rig.store.begin() as tx:
            tx.fleets.update_instances("gpu", [named.id], **asked)
            tx.fleets.update("gpu", desired=1, told=None, changed_at_ms=rig.clock.now_ms())
        scale_fleet(rig.ctx, "gpu")
        it.settle()
        assert [each.id for each in it.fleet.list()] == [named.id], "the cluster chose the other one"
        it.machines.full = False
        again, _ = next(leases)
        assert again.job_id == job_id
        assert named.id not in {each.id for each in it.fleet.list()}
