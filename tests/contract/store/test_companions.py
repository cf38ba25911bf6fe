"""Claims for jobs that may join those which the node is training, and what it is to have several leases at once."""

import pytest
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ANN, move_in, new_dataset, new_job, train

from giornata.control.attempts.claiming.claim import Asked, claim_each, nothing_yet
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.attempts.heartbeat import Beat, heartbeat_each
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.fleets.nodes import list_nodes
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.submit import submit
from giornata.control.monitoring import read_gauges
from giornata.domain.errors import LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.joint import joint_key_of
from giornata.protocol.node.work import Claim, FailAttempt, Heartbeat, HeartbeatReply, Order
from giornata.protocol.project.admin import ROOT_PROJECT, NodeState, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_root")


def asked(rig: StoreRig, number: int, joint_key: str | None) -> Asked:
    claim = Claim(request_id="request-x", node=rig.node(number), kinds=("train",), joint_key=joint_key)
    return Asked(caller=Caller(project_id=ROOT_PROJECT, scopes=Scope.NODE.reach, key_id="key_node"), claim=claim)


def test_a_claim_for_a_companion_gets_the_first_that_fits_and_nothing_else(rig: StoreRig) -> None:
    rig.add_job(priority=9)
    rig.add_job(priority=9, joint_key="other")
    rig.add_job(priority=9, joint_key="key", kind="x-other")
    young, old = rig.add_job(joint_key="key"), rig.add_job(joint_key="key", interrupted=True)
    leases = [rig.lease(1, joint_key="key") for _ in range(2)]
    assert [lease.job_id for lease in leases] == [old, young]
    assert [lease.joint_key for lease in leases] == ["key", "key"]
    reply = rig.claim(1, joint_key="key")
    assert (reply.lease, reply.reason) == (None, "no-such-companion")
    assert [rig.lease(1).joint_key for _ in range(2)] == [None, "other"], "a claim without a key takes any"


def test_claim_for_companion_is_refused_with_reason_and_without_a_write(rig: StoreRig) -> None:
    rig.claim(1, kinds=("x-none",))
    rig.add_job(joint_key="other")
    before = rig.whole_database()
    reply = nothing_yet(rig.ctx, asked(rig, 1, "key"))
    assert reply is not None
    assert reply.reason == "no-such-companion"
    assert rig.whole_database() == before
    job_id = rig.add_job(joint_key="key")
    assert nothing_yet(rig.ctx, asked(rig, 1, "key")) is None
    with rig.store.begin() as tx:
        tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    reply = nothing_yet(rig.ctx, asked(rig, 1, "key"))
    assert reply is not None
    assert reply.reason == "banned"
    assert rig.claim(1, joint_key="key").reason == "banned"
    assert rig.lease(2, joint_key="key").job_id == job_id


def test_a_repeated_claim_for_a_companion_gets_the_same_lease(rig: StoreRig) -> None:
    for _ in range(3):
        rig.add_job(joint_key="key")
    rig.lease(1)
    first, again = (rig.lease(1, request_id="request-a", joint_key="key") for _ in range(2))
    assert (first.attempt_id, first.token, first.joint_key) == (again.attempt_id, again.token, again.joint_key)
    assert len(rig.rows(schema.attempts)) == 2


def test_a_node_with_several_leases_is_one_busy_node_and_drains_them_all(rig: StoreRig) -> None:
    jobs = {rig.add_job(joint_key="key") for _ in range(3)}
    leases = [rig.lease(1, joint_key=key) for key in (None, "key", "key")]
    assert {lease.job_id for lease in leases} == jobs
    (node,) = list_nodes(rig.ctx, ADMIN, gone=False, cursor=None, limit=10).items
    assert (set(node.job_ids), node.state) == (jobs, NodeState.BUSY)
    assert read_gauges(rig.ctx).nodes == {NodeState.BUSY: 1}
    said = Heartbeat(step=1, held_models=("a", "b"), engine_pid=7)
    beats = [Beat(attempt_id=lease.attempt_id, said=said) for lease in leases]
    orders = [reply.order for reply in heartbeat_each(rig.ctx, beats) if isinstance(reply, HeartbeatReply)]
    assert orders == [Order.CONTINUE] * 3
    (row,) = rig.rows(schema.nodes)
    assert (row["held_models"], row["engine_pid"]) == (["a", "b"], 7)
    with rig.store.begin() as tx:
        tx.connection.execute(schema.nodes.update().values(draining=True))
    orders = [reply.order for reply in heartbeat_each(rig.ctx, beats) if isinstance(reply, HeartbeatReply)]
    assert orders == [Order.DRAIN] * 3
    assert rig.claim(1, joint_key="key").drain


def test_lapsed_leases_of_one_silent_node_come_back_or_are_lost_one_by_one(rig: StoreRig) -> None:
    for _ in range(2):
        rig.add_job(joint_key="key")
    one, two = rig.lease(1), rig.lease(1, joint_key="key")
    rig.clock.advance_s(100)
    assert lapse_leases(rig.ctx) == 2
    taken = rig.lease(2)
    assert taken.job_id == one.job_id
    beats = [Beat(attempt_id=lease.attempt_id, said=Heartbeat(step=1)) for lease in (one, two)]
    lost, back = heartbeat_each(rig.ctx, beats)
    assert isinstance(lost, LeaseLost)
    assert isinstance(back, HeartbeatReply)
    assert rig.attempt(one.attempt_id)["reason"] == "lease_expired"
    assert rig.job(two.job_id)["state"] == "running"


def test_several_claims_of_different_keys_at_once(rig: StoreRig) -> None:
    jobs = [rig.add_job(joint_key=key) for key in ("a", "b", "a", None)]
    claims = [asked(rig, number, key) for number, key in enumerate(("b", "a", "b", "a", None), 1)]
    replies = claim_each(rig.ctx, claims)
    got = [None if reply.lease is None else reply.lease.job_id for reply in replies]  # type: ignore[union-attr]
    assert got == [jobs[1], jobs[0], None, jobs[2], jobs[3]]


# ---- where the key comes from


def test_a_job_is_submitted_with_its_key(ctx: Context) -> None:
    move_in(ctx)
    job = new_job(ctx, rank=4)
    with ctx.store.read() as tx:
        row = tx.jobs.get(job.id)
    assert row is not None
    assert row.joint_key == joint_key_of("train", job.spec) is not None


@pytest.mark.parametrize("spec", [{"share_batch": False}, {"optimizer": "adafactor"}])
def test_a_job_that_trains_alone_has_no_key(ctx: Context, spec: dict[str, object]) -> None:
    move_in(ctx)
    job = new_job(ctx, **spec)
    own, _ = submit(ctx, ANN, SubmitJob(kind="x-own", spec={}), None)
    with ctx.store.read() as tx:
        rows = [tx.jobs.get(job_id) for job_id in (job.id, own.id)]
    assert [row and row.joint_key for row in rows] == [None, None]


@pytest.mark.parametrize("alone", [False, True])
def test_a_retry_may_share_a_batch_as_far_as_the_old_job_might(rig: StoreRig, alone: bool) -> None:
    move_in_beside(rig)
    job, _ = submit(rig.ctx, ANN, train(new_dataset(rig.ctx)), None)
    submit(rig.ctx, ANN, train(new_dataset(rig.ctx)), None)
    if alone:
        first, second = rig.lease(1), rig.lease(1)
        crash = FailAttempt(reason=Reason.CRASHED, message="x", together=(first.attempt_id, second.attempt_id))
        fail(rig.ctx, first.attempt_id, crash)
    key = rig.job(job.id)["joint_key"]
    assert (key is None) is alone
    cancel(rig.ctx, ANN, job.id)
    assert rig.job(retry(rig.ctx, ANN, job.id).id)["joint_key"] == key


def move_in_beside(rig: StoreRig) -> None:
    """ANN's project."""
    rig.add_project("ann")
