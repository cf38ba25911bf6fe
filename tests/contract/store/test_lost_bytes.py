"""Bytes that storage has lost: who is believed about them, and how they come again."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.contract.store.test_races import at_once
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ROOT, have

from giornata.control.attempts.commit import commit_artifact, commit_checkpoint
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.reject_checkpoint import reject_checkpoint
from giornata.control.context import Context
from giornata.control.ports.blobs import Stored
from giornata.control.storage.datasets import create_dataset
from giornata.control.storage.uploads import commit_cache, get_cache, request_attempt_uploads, request_uploads
from giornata.domain.errors import BlobMissing, Conflict, InvalidInput, LeaseLost, Unavailable
from giornata.protocol.node.work import (
    CommitArtifact,
    CommitCache,
    CommitCheckpoint,
    Committed,
    CompleteAttempt,
    Lease,
    ReleaseAttempt,
)
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.protocol.uploads import CreateDataset, DatasetItem, FileToUpload, UploadRequest
from giornata.store import schema

KEEP_ALL = {"checkpoints_keep_latest": 100}


@dataclass
class ReadStorage:
    """Storage that says when it is read whole, and lets something happen meanwhile."""

    blobs: Any
    reads: int = 0
    meanwhile: Callable[[], object] = lambda: None

    def digest(self, key: str) -> Stored:
        self.reads += 1
        stored: Stored = self.blobs.digest(key)
        self.meanwhile()
        return stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blobs, name)


@pytest.fixture
def watched(rig: StoreRig) -> ReadStorage:
    watched = ReadStorage(rig.ctx.blobs)
    rig.ctx = replace(rig.ctx, blobs=watched)
    return watched


def next_lease(rig: StoreRig, lease: Lease, node: int = 2) -> Lease:
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    return rig.lease(node)


def resumed(rig: StoreRig, *steps: int) -> tuple[str, Lease]:
    """A job with these checkpoints, and its second attempt."""
    job_id = rig.add_job(spec=KEEP_ALL)
    first = rig.lease(1)
    for step in steps or (100, 200):
        rig.checkpoint(first, step)
    return job_id, next_lease(rig, first)


def offered(lease: Lease) -> list[int]:
    return [checkpoint.step for checkpoint in lease.checkpoints]


def content(lease: Lease, step: int) -> bytes:
    return f"{lease.job_id} {step}".encode()


def named(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}


def sent(ctx: Context, lease: Lease, data: bytes) -> str | None:
    """As an agent does it: the id of an upload with the bytes in it, None when they are there already."""
    request = UploadRequest(files=(FileToUpload(**named(data)),))
    (ticket,) = request_attempt_uploads(ctx, lease.attempt_id, request).items
    if ticket.exists:
        return None
    with ctx.store.read() as tx:
        upload = tx.uploads.get(ticket.upload_id or "", project_id=ROOT_PROJECT)
    assert upload is not None
    ctx.blobs.write(upload.key, [data])
    return upload.id


def commit_again(rig: StoreRig, lease: Lease, step: int) -> Committed:
    data = content(lease, step)
    upload_id = sent(rig.ctx, lease, data)
    commit = CommitCheckpoint(step=step, upload_id=upload_id, **named(data))
    return commit_checkpoint(rig.ctx, lease.attempt_id, commit)


# ---- whom to believe


def test_a_node_that_cannot_fetch_good_bytes_goes_on_without_them_and_others_have_them(rig: StoreRig) -> None:
    job_id, second = resumed(rig)
    for _ in range(2):
        reject_checkpoint(rig.ctx, second.attempt_id, 200, "the connection broke")
        before = rig.whole_database()
    reject_checkpoint(rig.ctx, second.attempt_id, 200, "the connection broke")
    assert rig.whole_database() == before, "a repeat changes nothing"
    assert rig.job(job_id)["committed_step"] == 200
    assert rig.attempt(second.attempt_id)["start_step"] == 100
    assert "checkpoint.rejected" not in rig.events(job_id)
    assert rig.last_event(job_id, "notice") == {
        "name": "checkpoint-doubted",
        "step": 200,
        "message": "the connection broke",
        "found": "storage has the very bytes",
    }
    third = next_lease(rig, second, node=3)
    assert offered(third) == [200, 100]
    assert rig.attempt(third.attempt_id)["start_step"] == 200


def test_a_liar_can_reject_nothing_and_have_little_read(rig: StoreRig, watched: ReadStorage) -> None:
    job_id, lease = resumed(rig)
    for node in range(3, 9):
        for step in (200, 100, 200):
            reject_checkpoint(rig.ctx, lease.attempt_id, step, "no")
        lease = next_lease(rig, lease, node)
        assert offered(lease) == [200, 100]
    assert watched.reads == 2, "each object once"
    assert rig.events(job_id).count("notice") == 12, "and each doubt of each attempt is told once"
    rig.clock.advance_s(rig.ctx.policy.doubted_again_s)
    reject_checkpoint(rig.ctx, lease.attempt_id, 200, "no")
    assert watched.reads == 3


def test_few_are_read_at_a_time_however_many_doubt(rig: StoreRig, watched: ReadStorage) -> None:
    _, second = resumed(rig)
    readers = rig.ctx.memory.readers
    while readers.acquire(blocking=False):
        pass
    with pytest.raises(Unavailable, match="try again in a moment"):
        reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    assert watched.reads == 0
    readers.release()
    reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    assert readers.acquire(blocking=False), "whoever has read makes room"


def test_transaction_is_not_open_while_bytes_are_read(rig: StoreRig, watched: ReadStorage) -> None:
    """On SQLite a second writer would wait for ever, on PostgreSQL for the job's row."""
    job_id, second = resumed(rig)

    def meanwhile() -> None:
        with rig.store.begin() as tx:
            tx.jobs.lock(job_id)
            tx.jobs.update(job_id, phase="somebody else wrote")

    watched.meanwhile = meanwhile
    reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    assert (watched.reads, rig.job(job_id)["phase"]) == (1, "somebody else wrote")


def test_a_look_at_bytes_that_were_replaced_meanwhile_says_nothing(rig: StoreRig, watched: ReadStorage) -> None:
    job_id, second = resumed(rig)
    sha256 = rig.sha256_of(second, 200)
    rig.spoil(sha256)

    def meanwhile() -> None:
        rig.spoil(sha256, missing=True)
        sent_id = sent(replace(rig.ctx, blobs=watched.blobs), second, content(second, 200))
        commit = CommitArtifact(name="a", upload_id=sent_id, **named(content(second, 200)))
        commit_artifact(replace(rig.ctx, blobs=watched.blobs), second.attempt_id, commit)

    watched.meanwhile = meanwhile
    with pytest.raises(Unavailable, match="while the server verified them"):
        reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    watched.meanwhile = lambda: None
    reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    assert rig.job(job_id)["committed_step"] == 200, "by now they are good"


def test_an_attempt_that_ends_while_bytes_are_read_rejects_nothing(rig: StoreRig, watched: ReadStorage) -> None:
    job_id, second = resumed(rig)
    rig.spoil(rig.sha256_of(second, 200))
    watched.meanwhile = lambda: release(rig.ctx, second.attempt_id, ReleaseAttempt())
    with pytest.raises(LeaseLost):
        reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    assert rig.job(job_id)["committed_step"] == 200


def test_checkpoint_rejected_by_the_attempt_that_committed_it_stays_committed(rig: StoreRig) -> None:
    """A rejection that comes again when the step was committed anew."""
    job_id, second = resumed(rig)
    rig.spoil(rig.sha256_of(second, 200))
    reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    commit_again(rig, second, 200)
    reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    assert (rig.job(job_id)["committed_step"], rig.attempt(second.attempt_id)["committed_step"]) == (200, 200)
    assert "notice" not in rig.events(job_id)


# ---- what is lost comes again


@pytest.mark.parametrize("missing", [False, True])
def test_a_checkpoint_whose_bytes_are_gone_is_usable_again_when_they_come_again(rig: StoreRig, missing: bool) -> None:
    job_id, second = resumed(rig)
    rig.spoil(rig.sha256_of(second, 200), missing=missing)
    reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    assert rig.job(job_id)["committed_step"] == 100
    again = CommitCheckpoint(step=200, **named(content(second, 200)))
    with pytest.raises(BlobMissing):
        commit_checkpoint(rig.ctx, second.attempt_id, again)
    third = next_lease(rig, second, node=3)
    assert offered(third) == [100]
    assert not commit_again(rig, third, 200).superfluous
    assert rig.job(job_id)["committed_step"] == 200
    assert commit_again(rig, third, 200).superfluous
    fourth = next_lease(rig, third, node=4)
    assert offered(fourth) == [200, 100]
    key = fourth.checkpoints[0].download.request.url.split("/v1/blobs/")[1].split("?")[0]
    assert rig.ctx.blobs.digest(key).sha256 == again.sha256


def test_bytes_that_vanished_are_asked_for_again_though_nobody_complained(rig: StoreRig) -> None:
    """And with them everything that refers to them is whole again."""
    job_id, second = resumed(rig)
    rig.spoil(rig.sha256_of(second, 200), missing=True)
    data = content(second, 200)
    upload_id = sent(rig.ctx, second, data)
    assert upload_id is not None
    commit_artifact(rig.ctx, second.attempt_id, CommitArtifact(name="a", upload_id=upload_id, **named(data)))
    assert offered(next_lease(rig, second, node=3)) == [200, 100]
    (row,) = rig.rows(schema.blobs, sha256=rig.sha256_of(second, 200))
    assert rig.ctx.blobs.digest(row["key"]).sha256 == row["sha256"]
    assert rig.job(job_id)["committed_step"] == 200


def test_an_attempt_uploads_again_what_was_found_lost_between_its_upload_and_its_commit(rig: StoreRig) -> None:
    _, second = resumed(rig)
    data = content(second, 200)
    assert sent(rig.ctx, second, data) is None
    rig.spoil(rig.sha256_of(second, 200))
    reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    with pytest.raises(BlobMissing, match="upload"):
        commit_artifact(rig.ctx, second.attempt_id, CommitArtifact(name="a", **named(data)))
    upload_id = sent(rig.ctx, second, data)
    commit_artifact(rig.ctx, second.attempt_id, CommitArtifact(name="a", upload_id=upload_id, **named(data)))


def test_d36_another_projects_same_bytes_have_nothing_to_do_with_it(rig: StoreRig) -> None:
    rig.add_project("a")
    ours, second = resumed(rig)
    theirs = rig.add_job(project_id="a", spec=KEEP_ALL)
    other = rig.lease(5)
    data = content(second, 200)
    rig.checkpoint(other, 7, data, project_id="a")
    rig.spoil(rig.sha256_of(second, 200))
    reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    assert (rig.job(ours)["committed_step"], rig.job(theirs)["committed_step"]) == (100, 7)
    (row,) = rig.rows(schema.blobs, project_id="a")
    assert row["lost_at_ms"] is None
    # Nor does ours come again by theirs.
    with pytest.raises(BlobMissing):
        commit_checkpoint(rig.ctx, second.attempt_id, CommitCheckpoint(step=200, **named(data)))
    reject_checkpoint(rig.ctx, other.attempt_id, 7, "no")
    assert rig.job(theirs)["committed_step"] == 7


def test_two_jobs_with_the_same_bytes_lose_and_regain_them_one_by_one(rig: StoreRig, watched: ReadStorage) -> None:
    job_id, second = resumed(rig)
    data = content(second, 200)
    twin = rig.add_job(spec=KEEP_ALL)
    other = rig.lease(5)
    rig.checkpoint(other, 50, data)
    other = next_lease(rig, other, node=6)
    rig.spoil(rig.sha256_of(second, 200))
    reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    assert watched.reads == 1
    reject_checkpoint(rig.ctx, other.attempt_id, 50, "no")
    assert watched.reads == 1, "that they are lost was known"
    assert (rig.job(job_id)["committed_step"], rig.job(twin)["committed_step"]) == (100, 0)
    commit_again(rig, second, 200)
    assert rig.job(twin)["committed_step"] == 0, "a step counts when it is committed"
    commit = CommitCheckpoint(step=50, **named(data))
    assert not commit_checkpoint(rig.ctx, other.attempt_id, commit).superfluous
    assert (rig.job(job_id)["committed_step"], rig.job(twin)["committed_step"]) == (200, 50)


def test_rejecting_committing_and_asking_at_one_moment(rig: StoreRig) -> None:
    for round_ in range(4):
        job_id, lease = resumed(rig)
        rig.spoil(rig.sha256_of(lease, 200), missing=round_ % 2 == 0)
        attempt_id = lease.attempt_id

        def reject(attempt_id: str = attempt_id) -> object:
            try:
                return reject_checkpoint(rig.ctx, attempt_id, 200, "no")
            except Unavailable as error:  # too many readers, or replaced meanwhile
                return error

        at_once(reject, reject, lambda lease=lease: commit_again(rig, lease, 200), reject)  # type: ignore[misc]
        reject()
        commit_again(rig, lease, 200)
        assert rig.job(job_id)["committed_step"] == 200
        (row,) = rig.rows(schema.blobs, sha256=rig.sha256_of(lease, 200))
        assert (row["lost_at_ms"], rig.ctx.blobs.digest(row["key"]).sha256) == (None, row["sha256"])
        complete(rig.ctx, attempt_id, CompleteAttempt(step=200))


# ---- other bytes than checkpoints


def test_a_cache_entry_whose_bytes_vanished_makes_room_for_another(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    one, two = b"latents, one way", b"latents, another way"

    def put(data: bytes) -> Committed:
        commit = CommitCache(upload_id=sent(rig.ctx, lease, data), **named(data))
        return commit_cache(rig.ctx, lease.attempt_id, "latents", commit)

    put(one)
    assert put(two).superfluous
    rig.spoil(named(one)["sha256"], missing=True)
    assert get_cache(rig.ctx, lease.attempt_id, "latents").download is None
    assert not put(two).superfluous
    download = get_cache(rig.ctx, lease.attempt_id, "latents").download
    assert download is not None
    assert download.sha256 == named(two)["sha256"]


@pytest.mark.parametrize("missing", [False, True])
def test_a_picture_that_storage_lost_is_named_and_may_be_uploaded_again(rig: StoreRig, missing: bool) -> None:
    items = tuple(
        DatasetItem(sha256=have(rig.ctx, ROOT, f"picture {name}".encode()), name=f"{name}.png") for name in "abc"
    )
    rig.spoil(items[1].sha256, missing=missing)
    with pytest.raises(InvalidInput) as caught:
        create_dataset(rig.ctx, ROOT, CreateDataset(items=items))
    (fault,) = caught.value.faults
    assert (fault.where, fault.message) == ("b.png", "storage has lost its bytes")
    have(rig.ctx, ROOT, b"picture b")
    assert create_dataset(rig.ctx, ROOT, CreateDataset(items=items)).picture_count == 3


def test_upload_request_asks_again_only_for_vanished_blobs(rig: StoreRig) -> None:
    files = [b"file %d" % number for number in range(5)]
    for data in files:
        have(rig.ctx, ROOT, data)
    rig.spoil(named(files[3])["sha256"], missing=True)
    request = UploadRequest(files=tuple(FileToUpload(**named(data)) for data in files))
    assert [it.exists for it in request_uploads(rig.ctx, ROOT, request).items] == [True, True, True, False, True]


def test_a_node_without_a_lease_rejects_nothing(rig: StoreRig) -> None:
    _, second = resumed(rig)
    third = next_lease(rig, second, node=3)
    with pytest.raises(Conflict, match="has ended"):
        reject_checkpoint(rig.ctx, second.attempt_id, 200, "no")
    assert offered(third) == [200, 100]
