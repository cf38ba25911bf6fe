"""Commits: what exists, what counts, what may go."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.commit import commit_artifact, commit_checkpoint, to_prune
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.reject_checkpoint import reject_checkpoint
from giornata.control.attempts.report import put_metrics
from giornata.control.ports.node_queries.work_rows import BlobRow, CheckpointRow
from giornata.domain.errors import BlobMismatch, BlobMissing, Conflict, NotFound
from giornata.protocol.node.work import (
    CommitArtifact,
    CommitCheckpoint,
    CompleteAttempt,
    Lease,
    MetricBatch,
    ReleaseAttempt,
    StepMetrics,
)
from giornata.store import schema

KEEP_ALL = {"checkpoints_keep_latest": 100}


def steps(lease: Lease) -> list[int]:
    return [checkpoint.step for checkpoint in lease.checkpoints]


def next_lease(rig: StoreRig, lease: Lease, node: int = 2) -> Lease:
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    return rig.lease(node)


def test_d14_d17_resume_goes_by_the_highest_committed_step(rig: StoreRig) -> None:
    job_id = rig.add_job(spec=KEEP_ALL)
    lease = rig.lease(1)
    for step in (200, 300, 100):  # a slow upload of an old step comes last
        rig.checkpoint(lease, step)
    rig.artifact(lease, "lora.safetensors")
    assert rig.job(job_id)["committed_step"] == 300
    again = next_lease(rig, lease)
    assert steps(again) == [300, 200, 100]
    assert rig.attempt(again.attempt_id)["start_step"] == 300
    assert rig.events(job_id).count("checkpoint.committed") == 3


def test_a_job_is_never_shown_before_the_step_that_is_safe(rig: StoreRig) -> None:
    job_id = rig.add_job(spec=KEEP_ALL)
    lease = rig.lease(1)
    rig.checkpoint(lease, 20)  # before any beat or metrics told of a step
    assert (rig.job(job_id)["step"], rig.job(job_id)["committed_step"]) == (20, 20)
    put_metrics(rig.ctx, lease.attempt_id, MetricBatch(points=(StepMetrics(step=35, values={"loss": 1.0}),)))
    rig.checkpoint(lease, 30)
    assert (rig.job(job_id)["step"], rig.job(job_id)["committed_step"]) == (35, 30)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=3))
    assert (rig.job(job_id)["step"], rig.job(job_id)["committed_step"]) == (30, 30)


def test_d14_bytes_that_nobody_committed_do_not_exist(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    rig.add_blob(b"uploaded, never committed")
    assert steps(next_lease(rig, lease)) == []


def test_a_commit_that_is_repeated_changes_nothing(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    assert not rig.checkpoint(lease, 10).superfluous
    before = rig.rows(schema.checkpoints), rig.job(job_id), rig.events(job_id)
    rig.clock.advance_s(3)
    assert rig.checkpoint(lease, 10).superfluous
    assert (rig.rows(schema.checkpoints), rig.job(job_id), rig.events(job_id)) == before


def test_d15_a_checkpoint_that_does_not_hash_gives_way_to_the_one_before(rig: StoreRig) -> None:
    job_id = rig.add_job(spec=KEEP_ALL)
    first = rig.lease(1)
    for step in (100, 200):
        rig.checkpoint(first, step)
    second = next_lease(rig, first)
    rig.spoil(rig.sha256_of(first, 200))
    for _ in range(2):  # the reply may get lost
        reject_checkpoint(rig.ctx, second.attempt_id, 200, "sha256 differs")
    assert rig.job(job_id)["committed_step"] == 100
    assert rig.attempt(second.attempt_id)["start_step"] == 100
    assert rig.events(job_id).count("checkpoint.rejected") == 1
    told = rig.last_event(job_id, "checkpoint.rejected")
    assert (told["step"], told["message"], told["found"][:23]) == (200, "sha256 differs", "storage has bytes with ")
    assert steps(next_lease(rig, second, node=3)) == [100]
    with pytest.raises(NotFound, match="step 7"):
        reject_checkpoint(rig.ctx, rig.rows(schema.attempts)[-1]["id"], 7, "")


def test_bytes_that_differ_from_an_earlier_attempts_are_taken_and_told(rig: StoreRig) -> None:
    job_id = rig.add_job()
    first = rig.lease(1)
    rig.checkpoint(first, 100, b"one")
    second = next_lease(rig, first)
    rig.checkpoint(second, 100, b"two")
    assert rig.last_event(job_id, "notice")["name"] == "checkpoint-bytes-differ"
    (row,) = rig.rows(schema.checkpoints)
    assert row["attempt_number"] == 2
    with pytest.raises(Conflict, match="other bytes"):
        rig.checkpoint(second, 100, b"three")


def test_equal_bytes_of_a_later_attempt_leave_the_first_in_place(rig: StoreRig) -> None:
    job_id = rig.add_job()
    first = rig.lease(1)
    rig.checkpoint(first, 100)
    second = next_lease(rig, first)
    assert rig.checkpoint(second, 100).superfluous
    assert rig.rows(schema.checkpoints)[0]["attempt_number"] == 1
    assert "notice" not in rig.events(job_id)


def test_d16_d74_old_checkpoints_go_once_the_new_one_is_in(rig: StoreRig) -> None:
    job_id = rig.add_job(spec={"checkpoints_keep_latest": 2, "checkpoints_keep_every": 300})
    lease = rig.lease(1)
    rig.artifact(lease, "lora.safetensors")
    kept = []
    for step in range(100, 800, 100):
        rig.checkpoint(lease, step)
        kept.append([row["step"] for row in rig.rows(schema.checkpoints)])
    assert kept == [
        [100],
        [100, 200],
        [200, 300],
        [300, 400],
        [300, 400, 500],
        [300, 500, 600],
        [300, 600, 700],
    ]
    assert [row["name"] for row in rig.rows(schema.artifacts, job_id=job_id)] == ["lora.safetensors"]


def test_a_commit_that_comes_again_after_later_ones_changes_nothing(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    for step in (10, 20, 30):
        assert not rig.checkpoint(lease, step).superfluous
    before = rig.whole_database()
    assert rig.checkpoint(lease, 10).superfluous
    assert rig.whole_database() == before
    assert rig.events(job_id).count("checkpoint.committed") == 3


def test_d72_a_lower_step_never_evicts_a_higher_one(rig: StoreRig) -> None:
    rig.add_job(spec={"checkpoints_keep_latest": 1})
    lease = rig.lease(1)
    rig.checkpoint(lease, 500)
    rig.checkpoint(lease, 100)
    assert steps(next_lease(rig, lease)) == [500]


@given(
    rejected=st.dictionaries(st.integers(1, 60), st.booleans(), min_size=1),
    latest=st.integers(1, 5) | st.none(),
    every=st.integers(1, 20) | st.none(),
)
def test_pruning_keeps_the_last_usable_one_and_everything_asked_for(
    rejected: dict[int, bool], latest: int | None, every: int | None
) -> None:
    blob = BlobRow(sha256="a" * 64, size_bytes=1, key="k")
    rows: Sequence[CheckpointRow] = [
        CheckpointRow(step=step, attempt_number=1, rejected=bad, blob=blob) for step, bad in rejected.items()
    ]
    gone = set(to_prune(rows, {"checkpoints_keep_latest": latest, "checkpoints_keep_every": every}))
    usable = sorted((step for step, bad in rejected.items() if not bad), reverse=True)
    left = [step for step in usable if step not in gone]
    assert left[: latest or 2] == usable[: latest or 2]
    assert all(step in left for step in usable if every and step % every == 0)
    assert len(left) <= (latest or 2) + (len(usable) if every else 0)
    # What was rejected and lies above the oldest that is kept still stands in the way of its own bytes.
    assert not any(bad and step in gone and step > min(left, default=0) for step, bad in rejected.items())


def test_bytes_that_are_not_there_or_are_others_are_refused(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    blob = rig.add_blob(b"twelve bytes")
    unknown = CommitCheckpoint(step=1, sha256="0" * 64, size_bytes=3)
    with pytest.raises(BlobMissing):
        commit_checkpoint(rig.ctx, lease.attempt_id, unknown)
    with pytest.raises(BlobMismatch):
        commit_checkpoint(rig.ctx, lease.attempt_id, blob.model_copy(update={"step": 1, "size_bytes": 3}))
    with pytest.raises(BlobMissing):
        commit_artifact(rig.ctx, lease.attempt_id, CommitArtifact(name="a", sha256="0" * 64, size_bytes=3))
    assert rig.events(job_id) == ["attempt.started"]
    assert rig.rows(schema.checkpoints) == []


def test_d36_bytes_of_another_project_cannot_be_committed(rig: StoreRig) -> None:
    rig.add_project("a")
    rig.add_job()
    lease = rig.lease(1)
    theirs = rig.add_blob(b"secret", project_id="a").model_copy(update={"step": 1})
    with pytest.raises(BlobMissing):
        commit_checkpoint(rig.ctx, lease.attempt_id, theirs)


def test_d17_a_zombies_late_commit_changes_nothing(rig: StoreRig) -> None:
    job_id = rig.add_job(spec={"checkpoints_keep_latest": 1})
    zombie = rig.lease(1)
    rig.checkpoint(zombie, 100)
    rig.clock.advance_s(100)
    lapse_leases(rig.ctx)
    rig.checkpoint(rig.lease(2), 200)
    with pytest.raises(Exception, match="has ended"):
        rig.checkpoint(zombie, 300)
    assert [row["step"] for row in rig.rows(schema.checkpoints)] == [200]
    assert rig.job(job_id)["committed_step"] == 200


def test_the_events_say_who_vouched_last_for_an_artifact(rig: StoreRig) -> None:
    """Whoever completes keeps what it vouched for, and drops the rest: the history alone tells which is which."""
    job_id = rig.add_job()
    first = rig.lease(1)
    for name in ("a", "b"):
        rig.artifact(first, name, b"the same bytes")
    second = next_lease(rig, first)
    for _ in range(2):
        assert rig.artifact(second, "a", b"the same bytes").superfluous
    complete(rig.ctx, second.attempt_id, CompleteAttempt(step=1, artifacts=("a",)))
    told = rig.rows(schema.events, job_id=job_id, type="artifact.committed")
    assert [(row["attempt_number"], row["data"]["name"]) for row in told] == [(1, "a"), (1, "b"), (2, "a")]
    assert [row["name"] for row in rig.rows(schema.artifacts)] == ["a"]


def test_an_artifact_with_other_bytes_replaces_what_stood_there(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.artifact(lease, "a", b"one")
    assert rig.artifact(lease, "a", b"one").superfluous
    assert not rig.artifact(lease, "a", b"two").superfluous
    assert [row["size_bytes"] for row in rig.rows(schema.artifacts)] == [3]
    assert rig.events(job_id).count("artifact.committed") == 2
