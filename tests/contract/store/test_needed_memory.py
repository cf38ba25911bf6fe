"""A job is handed only to nodes with enough GPU memory, as far as is known; and jobs for one machine only."""

from typing import Any

import pytest
from tests.fixtures.users import ANN, ROOT, move_in
from tests.fixtures.work import NODE_CALLER, Workshop

from giornata.control.attempts.claim import Asked, claim_each
from giornata.control.attempts.reported_ends import fail
from giornata.control.context import Context
from giornata.control.jobs.read_jobs import get_job
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submit import submit
from giornata.domain.reasons import Reason
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.work import Claim, ClaimReply, FailAttempt, NodeInfo
from giornata.store import schema

GB = 10**9
GIB = 2**30


def node(shop: Workshop, number: int, vram_bytes: int | None) -> NodeInfo:
    return shop.node(number).model_copy(update={"vram_bytes": vram_bytes})


def lease_of(reply: Any) -> str | None:
    assert isinstance(reply, ClaimReply)
    return None if reply.lease is None else reply.lease.job_id


@pytest.mark.parametrize(
    ("vram_bytes", "fits"), [(20 * GB - 1, False), (20 * GB, True), (80 * GB, True), (None, True), (0, False)]
)
def test_a_node_gets_a_job_if_it_has_enough_or_does_not_know(
    shop: Workshop, vram_bytes: int | None, fits: bool
) -> None:
    job_id = shop.add_job(min_vram_bytes=20 * GB)
    reply = shop.claim(node(shop, 1, vram_bytes))
    assert lease_of(reply) == (job_id if fits else None)
    assert reply.reason == (None if fits else "too-small")


def test_a_small_node_gets_the_next_job_that_fits(shop: Workshop) -> None:
    large, small = shop.add_job(min_vram_bytes=20 * GB), shop.add_job()
    assert shop.lease(node(shop, 1, 8 * GB)).job_id == small
    reply = shop.claim(node(shop, 1, 8 * GB))
    assert (reply.reason, reply.detail) == (
        "too-small",
        "every job that waits needs more GPU memory than the 8.0 GB of this node",
    )
    assert shop.lease(node(shop, 2, 24 * GB)).job_id == large


def test_banned_is_told_from_too_small(shop: Workshop) -> None:
    job_id = shop.add_job(min_vram_bytes=20 * GB)
    with shop.store.begin() as tx:
        tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    assert shop.claim(node(shop, 1, 8 * GB)).reason == "banned"
    assert shop.claim(node(shop, 2, 8 * GB)).reason == "too-small"
    assert shop.claim(node(shop, 2, 8 * GB), kinds=("x-own",)).reason == "no-such-kind"


def test_several_claims_at_once_each_get_what_fits(shop: Workshop) -> None:
    large = [shop.add_job(min_vram_bytes=20 * GB) for _ in range(3)]
    small = [shop.add_job() for _ in range(2)]
    own = shop.add_job(only_machine_id="machine-1", priority=-5)
    shop.add_job(only_machine_id="machine-9", priority=99)
    sizes = (8 * GB, 24 * GB, 8 * GB, 8 * GB, 8 * GB, None)
    claims = [
        Asked(
            caller=NODE_CALLER,
            claim=Claim(request_id="request-1", node=node(shop, number, vram_bytes), kinds=("train",)),
        )
        for number, vram_bytes in enumerate(sizes, 1)
    ]
    got = [lease_of(reply) for reply in claim_each(shop.ctx, claims)]
    assert got == [own, large[0], small[0], small[1], None, large[1]]


# ---- what a job learns


def too_small(shop: Workshop, number: int, vram_bytes: int | None) -> str:
    """The first of the queue does not fit into this node; its id."""
    lease = shop.lease(node(shop, number, vram_bytes))
    report = FailAttempt(reason=Reason.NODE_TOO_SMALL, message="it does not fit")
    fail(shop.ctx, lease.attempt_id, report)
    return lease.job_id


def test_a_job_that_did_not_fit_is_not_tried_on_another_node_of_that_size(shop: Workshop) -> None:
    shop.add_job()
    job_id = too_small(shop, 1, 24 * GIB)
    needed = shop.job(job_id)["min_vram_bytes"]
    assert 24 * GIB < needed < 32 * GIB
    assert shop.claim(node(shop, 2, 24 * GIB)).reason == "too-small"
    notice = shop.last_event(job_id, "notice")
    assert notice == {"name": "needs-more-memory", "vram_bytes": 24 * GIB, "min_vram_bytes": needed}
    assert shop.lease(node(shop, 3, 32 * GIB)).job_id == job_id


def test_nothing_is_learnt_from_a_node_of_unknown_size(shop: Workshop) -> None:
    shop.add_job()
    job_id = too_small(shop, 1, None)
    assert shop.job(job_id)["min_vram_bytes"] == 0
    assert "notice" not in shop.events(job_id)
    assert shop.claim(node(shop, 1, None)).reason == "banned", "but it is not tried there again"
    assert shop.lease(node(shop, 2, None)).job_id == job_id


def test_what_a_job_needs_never_becomes_less(shop: Workshop) -> None:
    job_id = shop.add_job(min_vram_bytes=20 * GB)
    lease = shop.lease(node(shop, 1, None))
    with shop.store.begin() as tx:  # its device came back, and is not what it was
        tx.connection.execute(schema.nodes.update().values(vram_bytes=8 * GB))
    fail(shop.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_TOO_SMALL, message="it does not fit"))
    assert shop.job(job_id)["min_vram_bytes"] == 20 * GB
    assert "notice" not in shop.events(job_id)


def test_other_failures_teach_nothing_about_memory(shop: Workshop) -> None:
    job_id = shop.add_job()
    lease = shop.lease(node(shop, 1, 24 * GIB))
    fail(shop.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_VRAM, message="somebody else is there"))
    assert shop.job(job_id)["min_vram_bytes"] == 0


def test_what_did_not_fit_together_may_fit_alone(shop: Workshop) -> None:
    jobs = [shop.add_job(joint_key="key") for _ in range(2)]
    leases = [shop.lease(node(shop, 1, 24 * GIB), joint_key=key) for key in (None, "key")]
    together = tuple(lease.attempt_id for lease in leases)
    for lease in leases:
        report = FailAttempt(reason=Reason.NODE_TOO_SMALL, message="no room", together=together)
        fail(shop.ctx, lease.attempt_id, report)
    assert [shop.job(job_id)["min_vram_bytes"] for job_id in jobs] == [0, 0]
    assert shop.lease(node(shop, 1, 24 * GIB)).job_id == jobs[0]


# ---- what users say and see


def test_what_a_user_asks_for_is_kept_and_shown(ctx: Context) -> None:
    move_in(ctx)
    job, _ = submit(ctx, ANN, SubmitJob(kind="x-own", spec={}, min_vram_bytes=20 * GB), None)
    other, _ = submit(ctx, ANN, SubmitJob(kind="x-own", spec={}), None)
    assert (job.min_vram_bytes, other.min_vram_bytes) == (20 * GB, 0)
    cancel(ctx, ANN, job.id)
    assert retry(ctx, ANN, job.id).min_vram_bytes == 20 * GB


def test_a_job_says_that_no_node_is_large_enough(shop: Workshop) -> None:
    job_id = shop.add_job(kind="train", min_vram_bytes=40 * GB)
    small, large = node(shop, 1, 24 * GB), node(shop, 2, 48 * GB)
    shop.claim(small)
    assert get_job(shop.ctx, ROOT, job_id).waiting_because == (
        "no connected node has enough GPU memory: it needs 40.0 GB, and the largest has 24.0 GB"
    )
    shop.claim(large, kinds=("train", "x-none"), request_id="request-large", joint_key="none has it")
    assert get_job(shop.ctx, ROOT, job_id).waiting_because == "waiting for its turn, position 1 in the queue"
    with shop.store.begin() as tx:
        tx.bans.ban(job_id, "machine-2", Reason.CRASHED, at_ms=shop.clock.now_ms())
    assert (get_job(shop.ctx, ROOT, job_id).waiting_because or "").startswith(
        "every connected node that is large enough (1) has failed this job before; it goes back to one of them at "
    )


def test_a_ban_on_one_node_is_none_on_another(shop: Workshop) -> None:
    job_id = shop.add_job()
    for number in (1, 2):
        shop.claim(number, kinds=("train",), joint_key="none has it")
    with shop.store.begin() as tx:
        tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    assert get_job(shop.ctx, ROOT, job_id).waiting_because == "waiting for its turn, position 1 in the queue"
    with shop.store.begin() as tx:
        tx.bans.ban(job_id, "machine-2", Reason.CRASHED, at_ms=1)
    assert "every connected node (2)" in (get_job(shop.ctx, ROOT, job_id).waiting_because or "")


# ---- jobs for one machine


def test_a_job_for_one_machine_goes_there_before_anything_else(shop: Workshop) -> None:
    first = shop.add_job(priority=9, interrupted=True, model_key="held")
    own = shop.add_job(only_machine_id="machine-1", priority=-9)
    assert shop.lease(2, held_models=("held",)).job_id == first
    shop.add_job(priority=9, interrupted=True, model_key="held")
    assert shop.lease(1, held_models=("held",)).job_id == own


def test_nobody_else_gets_it_and_is_told_so(shop: Workshop) -> None:
    job_id = shop.add_job(only_machine_id="machine-1")
    reply = shop.claim(2)
    assert (reply.lease, reply.reason) == (None, "for-another")
    assert shop.claim(2, kinds=("x-own",)).reason == "empty-queue"
    assert get_job(shop.ctx, ROOT, job_id).waiting_because == (
        "no node for jobs of kind train on machine machine-1, which alone it is for, is connected"
    )
    shop.claim(1, kinds=("train", "x-own"), joint_key="joins nobody's batch")
    shop.add_job(interrupted=True)
    assert get_job(shop.ctx, ROOT, job_id).waiting_because == "waiting for its turn, position 1 in the queue"
    assert shop.lease(1).job_id == job_id


def test_a_job_for_one_machine_is_not_handed_to_it_once_it_is_banned_there(shop: Workshop) -> None:
    job_id = shop.add_job(only_machine_id="machine-1")
    with shop.store.begin() as tx:
        tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    assert shop.claim(1).reason == "banned"
    assert shop.claim(2).reason == "for-another"
    assert get_job(shop.ctx, ROOT, job_id).waiting_because == (
        "every connected node (1) has failed this job before and is banned from it"
    )
