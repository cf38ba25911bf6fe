"""A job is handed only to nodes with enough GPU memory, as far as is known; and jobs for one machine only."""

from typing import Any

import pytest
from tests.fixtures.store_rig import NODE_CALLER, StoreRig
from tests.fixtures.users import ANN, ROOT, move_in

from giornata.control.attempts.claiming.claim import Asked, claim_each
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.submit import submit
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.work import Claim, ClaimReply, FailAttempt, NodeInfo
from giornata.store import schema

GB = 10**9
GIB = 2**30


def node(rig: StoreRig, number: int, vram_bytes: int | None) -> NodeInfo:
    return rig.node(number).model_copy(update={"vram_bytes": vram_bytes})


def lease_of(reply: Any) -> str | None:
    assert isinstance(reply, ClaimReply)
    return None if reply.lease is None else reply.lease.job_id


@pytest.mark.parametrize(
    ("vram_bytes", "fits"), [(20 * GB - 1, False), (20 * GB, True), (80 * GB, True), (None, True), (0, False)]
)
def test_a_node_gets_a_job_if_it_has_enough_or_does_not_know(
    rig: StoreRig, vram_bytes: int | None, fits: bool
) -> None:
    job_id = rig.add_job(min_vram_bytes=20 * GB)
    reply = rig.claim(node(rig, 1, vram_bytes))
    assert lease_of(reply) == (job_id if fits else None)
    assert reply.reason == (None if fits else "too-small")


def test_a_small_node_gets_the_next_job_that_fits(rig: StoreRig) -> None:
    large, small = rig.add_job(min_vram_bytes=20 * GB), rig.add_job()
    assert rig.lease(node(rig, 1, 8 * GB)).job_id == small
    reply = rig.claim(node(rig, 1, 8 * GB))
    assert (reply.reason, reply.detail) == (
        "too-small",
        "every job that waits needs more GPU memory than the 8.0 GB of this node",
    )
    assert rig.lease(node(rig, 2, 24 * GB)).job_id == large


def test_banned_is_told_from_too_small(rig: StoreRig) -> None:
    job_id = rig.add_job(min_vram_bytes=20 * GB)
    with rig.store.begin() as tx:
        tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    assert rig.claim(node(rig, 1, 8 * GB)).reason == "banned"
    assert rig.claim(node(rig, 2, 8 * GB)).reason == "too-small"
    assert rig.claim(node(rig, 2, 8 * GB), kinds=("x-own",)).reason == "no-such-kind"


def test_several_claims_at_once_each_get_what_fits(rig: StoreRig) -> None:
    large = [rig.add_job(min_vram_bytes=20 * GB) for _ in range(3)]
    small = [rig.add_job() for _ in range(2)]
    own = rig.add_job(only_machine_id="machine-1", priority=-5)
    rig.add_job(only_machine_id="machine-9", priority=99)
    sizes = (8 * GB, 24 * GB, 8 * GB, 8 * GB, 8 * GB, None)
    claims = [
        Asked(
            caller=NODE_CALLER,
            claim=Claim(request_id="request-1", node=node(rig, number, vram_bytes), kinds=("train",)),
        )
        for number, vram_bytes in enumerate(sizes, 1)
    ]
    got = [lease_of(reply) for reply in claim_each(rig.ctx, claims)]
    assert got == [own, large[0], small[0], small[1], None, large[1]]


# ---- what a job learns


def too_small(rig: StoreRig, number: int, vram_bytes: int | None) -> str:
    """The first of the queue does not fit into this node; its id."""
    lease = rig.lease(node(rig, number, vram_bytes))
    report = FailAttempt(reason=Reason.NODE_TOO_SMALL, message="it does not fit")
    fail(rig.ctx, lease.attempt_id, report)
    return lease.job_id


def test_a_job_that_did_not_fit_is_not_tried_on_another_node_of_that_size(rig: StoreRig) -> None:
    rig.add_job()
    job_id = too_small(rig, 1, 24 * GIB)
    needed = rig.job(job_id)["min_vram_bytes"]
    assert 24 * GIB < needed < 32 * GIB
    assert rig.claim(node(rig, 2, 24 * GIB)).reason == "too-small"
    notice = rig.last_event(job_id, "notice")
    assert notice == {"name": "needs-more-memory", "vram_bytes": 24 * GIB, "min_vram_bytes": needed}
    assert rig.lease(node(rig, 3, 32 * GIB)).job_id == job_id


def test_node_of_unknown_size_teaches_no_memory_bound(rig: StoreRig) -> None:
    rig.add_job()
    job_id = too_small(rig, 1, None)
    assert rig.job(job_id)["min_vram_bytes"] == 0
    assert "notice" not in rig.events(job_id)
    assert rig.claim(node(rig, 1, None)).reason == "banned", "but it is not tried there again"
    assert rig.lease(node(rig, 2, None)).job_id == job_id


def test_needed_memory_of_a_job_never_decreases(rig: StoreRig) -> None:
    job_id = rig.add_job(min_vram_bytes=20 * GB)
    lease = rig.lease(node(rig, 1, None))
    with rig.store.begin() as tx:  # its device came back, and is not what it was
        tx.connection.execute(schema.nodes.update().values(vram_bytes=8 * GB))
    fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_TOO_SMALL, message="it does not fit"))
    assert rig.job(job_id)["min_vram_bytes"] == 20 * GB
    assert "notice" not in rig.events(job_id)


def test_failure_by_node_vram_leaves_needed_memory_unchanged(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(node(rig, 1, 24 * GIB))
    fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_VRAM, message="somebody else is there"))
    assert rig.job(job_id)["min_vram_bytes"] == 0


def test_jobs_that_did_not_fit_together_are_claimed_alone_on_the_same_node(rig: StoreRig) -> None:
    jobs = [rig.add_job(joint_key="key") for _ in range(2)]
    leases = [rig.lease(node(rig, 1, 24 * GIB), joint_key=key) for key in (None, "key")]
    together = tuple(lease.attempt_id for lease in leases)
    for lease in leases:
        report = FailAttempt(reason=Reason.NODE_TOO_SMALL, message="no room", together=together)
        fail(rig.ctx, lease.attempt_id, report)
    assert [rig.job(job_id)["min_vram_bytes"] for job_id in jobs] == [0, 0]
    assert rig.lease(node(rig, 1, 24 * GIB)).job_id == jobs[0]


# ---- what users say and see


def test_min_vram_bytes_of_submitted_job_is_shown_and_kept_by_retry(ctx: Context) -> None:
    move_in(ctx)
    job, _ = submit(ctx, ANN, SubmitJob(kind="x-own", spec={}, min_vram_bytes=20 * GB), None)
    other, _ = submit(ctx, ANN, SubmitJob(kind="x-own", spec={}), None)
    assert (job.min_vram_bytes, other.min_vram_bytes) == (20 * GB, 0)
    cancel(ctx, ANN, job.id)
    assert retry(ctx, ANN, job.id).min_vram_bytes == 20 * GB


def test_a_job_says_that_no_node_is_large_enough(rig: StoreRig) -> None:
    job_id = rig.add_job(kind="train", min_vram_bytes=40 * GB)
    small, large = node(rig, 1, 24 * GB), node(rig, 2, 48 * GB)
    rig.claim(small)
    assert get_job(rig.ctx, ROOT, job_id).waiting_because == (
        "no connected node has enough GPU memory: it needs 40.0 GB, and the largest has 24.0 GB"
    )
    rig.claim(large, kinds=("train", "x-none"), request_id="request-large", joint_key="none has it")
    assert get_job(rig.ctx, ROOT, job_id).waiting_because == "waiting for its turn, position 1 in the queue"
    with rig.store.begin() as tx:
        tx.bans.ban(job_id, "machine-2", Reason.CRASHED, at_ms=rig.clock.now_ms())
    assert (get_job(rig.ctx, ROOT, job_id).waiting_because or "").startswith(
        "every connected node that is large enough (1) has failed this job before; it goes back to one of them at "
    )


def test_a_ban_on_one_node_is_none_on_another(rig: StoreRig) -> None:
    job_id = rig.add_job()
    for number in (1, 2):
        rig.claim(number, kinds=("train",), joint_key="none has it")
    with rig.store.begin() as tx:
        tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    assert get_job(rig.ctx, ROOT, job_id).waiting_because == "waiting for its turn, position 1 in the queue"
    with rig.store.begin() as tx:
        tx.bans.ban(job_id, "machine-2", Reason.CRASHED, at_ms=1)
    assert "every connected node (2)" in (get_job(rig.ctx, ROOT, job_id).waiting_because or "")


# ---- jobs for one machine


def test_a_job_for_one_machine_goes_there_before_anything_else(rig: StoreRig) -> None:
    first = rig.add_job(priority=9, interrupted=True, model_key="held")
    own = rig.add_job(only_machine_id="machine-1", priority=-9)
    assert rig.lease(2, held_models=("held",)).job_id == first
    rig.add_job(priority=9, interrupted=True, model_key="held")
    assert rig.lease(1, held_models=("held",)).job_id == own


def test_job_for_one_machine_is_not_claimed_by_another_and_says_why_it_waits(rig: StoreRig) -> None:
    job_id = rig.add_job(only_machine_id="machine-1")
    reply = rig.claim(2)
    assert (reply.lease, reply.reason) == (None, "for-another")
    assert rig.claim(2, kinds=("x-own",)).reason == "empty-queue"
    assert get_job(rig.ctx, ROOT, job_id).waiting_because == (
        "no node for jobs of kind train on machine machine-1, which alone it is for, is connected"
    )
    rig.claim(1, kinds=("train", "x-own"), joint_key="joins nobody's batch")
    rig.add_job(interrupted=True)
    assert get_job(rig.ctx, ROOT, job_id).waiting_because == "waiting for its turn, position 1 in the queue"
    assert rig.lease(1).job_id == job_id


def test_a_job_for_one_machine_is_not_handed_to_it_once_it_is_banned_there(rig: StoreRig) -> None:
    job_id = rig.add_job(only_machine_id="machine-1")
    with rig.store.begin() as tx:
        tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    assert rig.claim(1).reason == "banned"
    assert rig.claim(2).reason == "for-another"
    assert get_job(rig.ctx, ROOT, job_id).waiting_because == (
        "every connected node (1) has failed this job before and is banned from it"
    )
