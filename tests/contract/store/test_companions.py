"""Claims for jobs that may join those which the node is training, and what it is to have several leases at once."""

import pytest
from tests.fixtures.users import ANN, move_in, new_dataset, new_job, train
from tests.fixtures.work import Workshop

from giornata.control.attempts.claim import Asked, claim_each, nothing_yet
from giornata.control.attempts.heartbeat import Beat, heartbeat_each
from giornata.control.attempts.lapse import lapse_leases
from giornata.control.attempts.reported_ends import fail
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.fleets.nodes import list_nodes
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submit import submit
from giornata.control.monitoring import read_gauges
from giornata.domain.errors import LeaseLost
from giornata.domain.reasons import Reason
from giornata.protocol.admin import ROOT_PROJECT, NodeState, Scope
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.joint import joint_key_of
from giornata.protocol.work import Claim, FailAttempt, Heartbeat, HeartbeatReply, Order
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_root")


def asked(shop: Workshop, number: int, joint_key: str | None) -> Asked:
    claim = Claim(request_id="request-x", node=shop.node(number), kinds=("train",), joint_key=joint_key)
    return Asked(caller=Caller(project_id=ROOT_PROJECT, scope=Scope.NODE, key_id="key_node"), claim=claim)


def test_a_claim_for_a_companion_gets_the_first_that_fits_and_nothing_else(shop: Workshop) -> None:
    shop.add_job(priority=9)
    shop.add_job(priority=9, joint_key="other")
    shop.add_job(priority=9, joint_key="key", kind="x-other")
    young, old = shop.add_job(joint_key="key"), shop.add_job(joint_key="key", interrupted=True)
    leases = [shop.lease(1, joint_key="key") for _ in range(2)]
    assert [lease.job_id for lease in leases] == [old, young]
    assert [lease.joint_key for lease in leases] == ["key", "key"]
    reply = shop.claim(1, joint_key="key")
    assert (reply.lease, reply.reason) == (None, "no-such-companion")
    assert [shop.lease(1).joint_key for _ in range(2)] == [None, "other"], "a claim without a key takes any"


def test_who_waits_for_a_companion_is_told_without_a_write_whether_there_is_one(shop: Workshop) -> None:
    shop.claim(1, kinds=("x-none",))
    shop.add_job(joint_key="other")
    before = shop.whole_database()
    reply = nothing_yet(shop.ctx, asked(shop, 1, "key"))
    assert reply is not None
    assert reply.reason == "no-such-companion"
    assert shop.whole_database() == before
    job_id = shop.add_job(joint_key="key")
    assert nothing_yet(shop.ctx, asked(shop, 1, "key")) is None
    with shop.store.begin() as tx:
        tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    reply = nothing_yet(shop.ctx, asked(shop, 1, "key"))
    assert reply is not None
    assert reply.reason == "banned"
    assert shop.claim(1, joint_key="key").reason == "banned"
    assert shop.lease(2, joint_key="key").job_id == job_id


def test_a_repeated_claim_for_a_companion_gets_the_same_lease(shop: Workshop) -> None:
    for _ in range(3):
        shop.add_job(joint_key="key")
    shop.lease(1)
    first, again = (shop.lease(1, request_id="request-a", joint_key="key") for _ in range(2))
    assert (first.attempt_id, first.token, first.joint_key) == (again.attempt_id, again.token, again.joint_key)
    assert len(shop.rows(schema.attempts)) == 2


def test_a_node_with_several_leases_is_one_busy_node_and_drains_them_all(shop: Workshop) -> None:
    jobs = {shop.add_job(joint_key="key") for _ in range(3)}
    leases = [shop.lease(1, joint_key=key) for key in (None, "key", "key")]
    assert {lease.job_id for lease in leases} == jobs
    (node,) = list_nodes(shop.ctx, ADMIN, gone=False, cursor=None, limit=10).items
    assert (set(node.job_ids), node.state) == (jobs, NodeState.BUSY)
    assert read_gauges(shop.ctx).nodes == {NodeState.BUSY: 1}
    said = Heartbeat(step=1, held_models=("a", "b"), engine_pid=7)
    beats = [Beat(attempt_id=lease.attempt_id, said=said) for lease in leases]
    orders = [reply.order for reply in heartbeat_each(shop.ctx, beats) if isinstance(reply, HeartbeatReply)]
    assert orders == [Order.CONTINUE] * 3
    (row,) = shop.rows(schema.nodes)
    assert (row["held_models"], row["engine_pid"]) == (["a", "b"], 7)
    with shop.store.begin() as tx:
        tx.connection.execute(schema.nodes.update().values(draining=True))
    orders = [reply.order for reply in heartbeat_each(shop.ctx, beats) if isinstance(reply, HeartbeatReply)]
    assert orders == [Order.DRAIN] * 3
    assert shop.claim(1, joint_key="key").drain


def test_of_several_leases_of_a_node_that_fell_silent_each_comes_back_or_is_lost_by_itself(shop: Workshop) -> None:
    for _ in range(2):
        shop.add_job(joint_key="key")
    one, two = shop.lease(1), shop.lease(1, joint_key="key")
    shop.clock.advance_s(100)
    assert lapse_leases(shop.ctx) == 2
    taken = shop.lease(2)
    assert taken.job_id == one.job_id
    beats = [Beat(attempt_id=lease.attempt_id, said=Heartbeat(step=1)) for lease in (one, two)]
    lost, back = heartbeat_each(shop.ctx, beats)
    assert isinstance(lost, LeaseLost)
    assert isinstance(back, HeartbeatReply)
    assert shop.attempt(one.attempt_id)["reason"] == "lease_expired"
    assert shop.job(two.job_id)["state"] == "running"


def test_several_claims_of_different_keys_at_once(shop: Workshop) -> None:
    jobs = [shop.add_job(joint_key=key) for key in ("a", "b", "a", None)]
    claims = [asked(shop, number, key) for number, key in enumerate(("b", "a", "b", "a", None), 1)]
    replies = claim_each(shop.ctx, claims)
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
def test_a_retry_may_share_a_batch_as_far_as_the_old_job_might(shop: Workshop, alone: bool) -> None:
    move_in_beside(shop)
    job, _ = submit(shop.ctx, ANN, train(new_dataset(shop.ctx)), None)
    submit(shop.ctx, ANN, train(new_dataset(shop.ctx)), None)
    if alone:
        first, second = shop.lease(1), shop.lease(1)
        crash = FailAttempt(reason=Reason.CRASHED, message="x", together=(first.attempt_id, second.attempt_id))
        fail(shop.ctx, first.attempt_id, crash)
    key = shop.job(job.id)["joint_key"]
    assert (key is None) is alone
    cancel(shop.ctx, ANN, job.id)
    assert shop.job(retry(shop.ctx, ANN, job.id).id)["joint_key"] == key


def move_in_beside(shop: Workshop) -> None:
    """ANN's project."""
    shop.add_project("ann")
