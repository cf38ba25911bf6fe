"""Bytes that storage has lost: who is believed about them, and how they come again."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.contract.store.test_races import at_once
from tests.fixtures.users import ROOT, have
from tests.fixtures.work import Workshop

from giornata.control.attempts.commit import commit_artifact, commit_checkpoint
from giornata.control.attempts.complete import complete
from giornata.control.attempts.reject_checkpoint import reject_checkpoint
from giornata.control.attempts.reported_ends import release
from giornata.control.context import Context
from giornata.control.ports.blobs import Stored
from giornata.control.storage.datasets import create_dataset
from giornata.control.storage.uploads import commit_cache, get_cache, request_attempt_uploads, request_uploads
from giornata.domain.errors import BlobMissing, Conflict, InvalidInput, LeaseLost, Unavailable
from giornata.protocol.admin import ROOT_PROJECT
from giornata.protocol.uploads import CreateDataset, DatasetItem, FileToUpload, UploadRequest
from giornata.protocol.work import (
    CommitArtifact,
    CommitCache,
    CommitCheckpoint,
    Committed,
    CompleteAttempt,
    Lease,
    ReleaseAttempt,
)
from giornata.store import schema

KEEP_ALL = {"checkpoints_keep_latest": 100}


@dataclass
class Watched:
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
def watched(shop: Workshop) -> Watched:
    watched = Watched(shop.ctx.blobs)
    shop.ctx = replace(shop.ctx, blobs=watched)
    return watched


def next_lease(shop: Workshop, lease: Lease, node: int = 2) -> Lease:
    release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    return shop.lease(node)


def resumed(shop: Workshop, *steps: int) -> tuple[str, Lease]:
    """A job with these checkpoints, and its second attempt."""
    job_id = shop.add_job(spec=KEEP_ALL)
    first = shop.lease(1)
    for step in steps or (100, 200):
        shop.checkpoint(first, step)
    return job_id, next_lease(shop, first)


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


def commit_again(shop: Workshop, lease: Lease, step: int) -> Committed:
    data = content(lease, step)
    upload_id = sent(shop.ctx, lease, data)
    commit = CommitCheckpoint(step=step, upload_id=upload_id, **named(data))
    return commit_checkpoint(shop.ctx, lease.attempt_id, commit)


# ---- whom to believe


def test_a_node_that_cannot_fetch_good_bytes_goes_on_without_them_and_others_have_them(shop: Workshop) -> None:
    job_id, second = resumed(shop)
    for _ in range(2):
        reject_checkpoint(shop.ctx, second.attempt_id, 200, "the connection broke")
        before = shop.whole_database()
    reject_checkpoint(shop.ctx, second.attempt_id, 200, "the connection broke")
    assert shop.whole_database() == before, "a repeat changes nothing"
    assert shop.job(job_id)["committed_step"] == 200
    assert shop.attempt(second.attempt_id)["start_step"] == 100
    assert "checkpoint.rejected" not in shop.events(job_id)
    assert shop.last_event(job_id, "notice") == {
        "name": "checkpoint-doubted",
        "step": 200,
        "message": "the connection broke",
        "found": "storage has the very bytes",
    }
    third = next_lease(shop, second, node=3)
    assert offered(third) == [200, 100]
    assert shop.attempt(third.attempt_id)["start_step"] == 200


def test_a_liar_can_reject_nothing_and_have_little_read(shop: Workshop, watched: Watched) -> None:
    job_id, lease = resumed(shop)
    for node in range(3, 9):
        for step in (200, 100, 200):
            reject_checkpoint(shop.ctx, lease.attempt_id, step, "no")
        lease = next_lease(shop, lease, node)
        assert offered(lease) == [200, 100]
    assert watched.reads == 2, "each object once"
    assert shop.events(job_id).count("notice") == 12, "and each doubt of each attempt is told once"
    shop.clock.advance_s(shop.ctx.policy.doubted_again_s)
    reject_checkpoint(shop.ctx, lease.attempt_id, 200, "no")
    assert watched.reads == 3


def test_few_are_read_at_a_time_however_many_doubt(shop: Workshop, watched: Watched) -> None:
    _, second = resumed(shop)
    readers = shop.ctx.memory.readers
    while readers.acquire(blocking=False):
        pass
    with pytest.raises(Unavailable, match="ask again"):
        reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    assert watched.reads == 0
    readers.release()
    reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    assert readers.acquire(blocking=False), "whoever has read makes room"


def test_nothing_is_held_while_bytes_are_read(shop: Workshop, watched: Watched) -> None:
    """On SQLite a second writer would wait for ever, on PostgreSQL for the job's row."""
    job_id, second = resumed(shop)

    def meanwhile() -> None:
        with shop.store.begin() as tx:
            tx.jobs.lock(job_id)
            tx.jobs.update(job_id, phase="somebody else wrote")

    watched.meanwhile = meanwhile
    reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    assert (watched.reads, shop.job(job_id)["phase"]) == (1, "somebody else wrote")


def test_a_look_at_bytes_that_were_replaced_meanwhile_says_nothing(shop: Workshop, watched: Watched) -> None:
    job_id, second = resumed(shop)
    sha256 = shop.sha256_of(second, 200)
    shop.spoil(sha256)

    def meanwhile() -> None:
        shop.spoil(sha256, missing=True)
        sent_id = sent(replace(shop.ctx, blobs=watched.blobs), second, content(second, 200))
        commit = CommitArtifact(name="a", upload_id=sent_id, **named(content(second, 200)))
        commit_artifact(replace(shop.ctx, blobs=watched.blobs), second.attempt_id, commit)

    watched.meanwhile = meanwhile
    with pytest.raises(Unavailable, match="while the server was looking"):
        reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    watched.meanwhile = lambda: None
    reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    assert shop.job(job_id)["committed_step"] == 200, "by now they are good"


def test_an_attempt_that_ends_while_bytes_are_read_rejects_nothing(shop: Workshop, watched: Watched) -> None:
    job_id, second = resumed(shop)
    shop.spoil(shop.sha256_of(second, 200))
    watched.meanwhile = lambda: release(shop.ctx, second.attempt_id, ReleaseAttempt())
    with pytest.raises(LeaseLost):
        reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    assert shop.job(job_id)["committed_step"] == 200


def test_what_an_attempt_has_committed_itself_it_cannot_doubt(shop: Workshop) -> None:
    """A rejection that comes again when the step was committed anew."""
    job_id, second = resumed(shop)
    shop.spoil(shop.sha256_of(second, 200))
    reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    commit_again(shop, second, 200)
    reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    assert (shop.job(job_id)["committed_step"], shop.attempt(second.attempt_id)["committed_step"]) == (200, 200)
    assert "notice" not in shop.events(job_id)


# ---- what is lost comes again


@pytest.mark.parametrize("missing", [False, True])
def test_a_checkpoint_whose_bytes_are_gone_is_usable_again_when_they_come_again(
    shop: Workshop, missing: bool
) -> None:
    job_id, second = resumed(shop)
    shop.spoil(shop.sha256_of(second, 200), missing=missing)
    reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    assert shop.job(job_id)["committed_step"] == 100
    again = CommitCheckpoint(step=200, **named(content(second, 200)))
    with pytest.raises(BlobMissing):
        commit_checkpoint(shop.ctx, second.attempt_id, again)
    third = next_lease(shop, second, node=3)
    assert offered(third) == [100]
    assert not commit_again(shop, third, 200).superfluous
    assert shop.job(job_id)["committed_step"] == 200
    assert commit_again(shop, third, 200).superfluous
    fourth = next_lease(shop, third, node=4)
    assert offered(fourth) == [200, 100]
    key = fourth.checkpoints[0].download.request.url.split("/v1/blobs/")[1].split("?")[0]
    assert shop.ctx.blobs.digest(key).sha256 == again.sha256


def test_bytes_that_vanished_are_asked_for_again_though_nobody_complained(shop: Workshop) -> None:
    """And with them everything that refers to them is whole again."""
    job_id, second = resumed(shop)
    shop.spoil(shop.sha256_of(second, 200), missing=True)
    data = content(second, 200)
    upload_id = sent(shop.ctx, second, data)
    assert upload_id is not None
    commit_artifact(shop.ctx, second.attempt_id, CommitArtifact(name="a", upload_id=upload_id, **named(data)))
    assert offered(next_lease(shop, second, node=3)) == [200, 100]
    (row,) = shop.rows(schema.blobs, sha256=shop.sha256_of(second, 200))
    assert shop.ctx.blobs.digest(row["key"]).sha256 == row["sha256"]
    assert shop.job(job_id)["committed_step"] == 200


def test_an_attempt_uploads_again_what_was_found_lost_between_its_upload_and_its_commit(shop: Workshop) -> None:
    _, second = resumed(shop)
    data = content(second, 200)
    assert sent(shop.ctx, second, data) is None
    shop.spoil(shop.sha256_of(second, 200))
    reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    with pytest.raises(BlobMissing, match="upload"):
        commit_artifact(shop.ctx, second.attempt_id, CommitArtifact(name="a", **named(data)))
    upload_id = sent(shop.ctx, second, data)
    commit_artifact(shop.ctx, second.attempt_id, CommitArtifact(name="a", upload_id=upload_id, **named(data)))


def test_d36_another_projects_same_bytes_have_nothing_to_do_with_it(shop: Workshop) -> None:
    shop.add_project("a")
    ours, second = resumed(shop)
    theirs = shop.add_job(project_id="a", spec=KEEP_ALL)
    other = shop.lease(5)
    data = content(second, 200)
    shop.checkpoint(other, 7, data, project_id="a")
    shop.spoil(shop.sha256_of(second, 200))
    reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    assert (shop.job(ours)["committed_step"], shop.job(theirs)["committed_step"]) == (100, 7)
    (row,) = shop.rows(schema.blobs, project_id="a")
    assert row["lost_at_ms"] is None
    # Nor does ours come again by theirs.
    with pytest.raises(BlobMissing):
        commit_checkpoint(shop.ctx, second.attempt_id, CommitCheckpoint(step=200, **named(data)))
    reject_checkpoint(shop.ctx, other.attempt_id, 7, "no")
    assert shop.job(theirs)["committed_step"] == 7


def test_two_jobs_with_the_same_bytes_lose_and_regain_them_one_by_one(shop: Workshop, watched: Watched) -> None:
    job_id, second = resumed(shop)
    data = content(second, 200)
    twin = shop.add_job(spec=KEEP_ALL)
    other = shop.lease(5)
    shop.checkpoint(other, 50, data)
    other = next_lease(shop, other, node=6)
    shop.spoil(shop.sha256_of(second, 200))
    reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    assert watched.reads == 1
    reject_checkpoint(shop.ctx, other.attempt_id, 50, "no")
    assert watched.reads == 1, "that they are lost was known"
    assert (shop.job(job_id)["committed_step"], shop.job(twin)["committed_step"]) == (100, 0)
    commit_again(shop, second, 200)
    assert shop.job(twin)["committed_step"] == 0, "a step counts when it is committed"
    commit = CommitCheckpoint(step=50, **named(data))
    assert not commit_checkpoint(shop.ctx, other.attempt_id, commit).superfluous
    assert (shop.job(job_id)["committed_step"], shop.job(twin)["committed_step"]) == (200, 50)


def test_rejecting_committing_and_asking_at_one_moment(shop: Workshop) -> None:
    for round_ in range(4):
        job_id, lease = resumed(shop)
        shop.spoil(shop.sha256_of(lease, 200), missing=round_ % 2 == 0)
        attempt_id = lease.attempt_id

        def reject(attempt_id: str = attempt_id) -> object:
            try:
                return reject_checkpoint(shop.ctx, attempt_id, 200, "no")
            except Unavailable as error:  # too many readers, or replaced meanwhile
                return error

        at_once(reject, reject, lambda lease=lease: commit_again(shop, lease, 200), reject)  # type: ignore[misc]
        reject()
        commit_again(shop, lease, 200)
        assert shop.job(job_id)["committed_step"] == 200
        (row,) = shop.rows(schema.blobs, sha256=shop.sha256_of(lease, 200))
        assert (row["lost_at_ms"], shop.ctx.blobs.digest(row["key"]).sha256) == (None, row["sha256"])
        complete(shop.ctx, attempt_id, CompleteAttempt(step=200))


# ---- other bytes than checkpoints


def test_a_cache_entry_whose_bytes_vanished_makes_room_for_another(shop: Workshop) -> None:
    shop.add_job()
    lease = shop.lease(1)
    one, two = b"latents, one way", b"latents, another way"

    def put(data: bytes) -> Committed:
        commit = CommitCache(upload_id=sent(shop.ctx, lease, data), **named(data))
        return commit_cache(shop.ctx, lease.attempt_id, "latents", commit)

    put(one)
    assert put(two).superfluous
    shop.spoil(named(one)["sha256"], missing=True)
    assert get_cache(shop.ctx, lease.attempt_id, "latents").download is None
    assert not put(two).superfluous
    download = get_cache(shop.ctx, lease.attempt_id, "latents").download
    assert download is not None
    assert download.sha256 == named(two)["sha256"]


@pytest.mark.parametrize("missing", [False, True])
def test_a_picture_that_storage_lost_is_named_and_may_be_uploaded_again(shop: Workshop, missing: bool) -> None:
    items = tuple(
        DatasetItem(sha256=have(shop.ctx, ROOT, f"picture {name}".encode()), name=f"{name}.png") for name in "abc"
    )
    shop.spoil(items[1].sha256, missing=missing)
    with pytest.raises(InvalidInput) as caught:
        create_dataset(shop.ctx, ROOT, CreateDataset(items=items))
    (fault,) = caught.value.faults
    assert (fault.where, fault.message) == ("b.png", "storage has lost its bytes")
    have(shop.ctx, ROOT, b"picture b")
    assert create_dataset(shop.ctx, ROOT, CreateDataset(items=items)).picture_count == 3


def test_of_many_files_only_those_that_vanished_are_asked_for_again(shop: Workshop) -> None:
    files = [b"file %d" % number for number in range(5)]
    for data in files:
        have(shop.ctx, ROOT, data)
    shop.spoil(named(files[3])["sha256"], missing=True)
    request = UploadRequest(files=tuple(FileToUpload(**named(data)) for data in files))
    assert [it.exists for it in request_uploads(shop.ctx, ROOT, request).items] == [True, True, True, False, True]


def test_a_node_without_a_lease_rejects_nothing(shop: Workshop) -> None:
    _, second = resumed(shop)
    third = next_lease(shop, second, node=3)
    with pytest.raises(Conflict, match="has ended"):
        reject_checkpoint(shop.ctx, second.attempt_id, 200, "no")
    assert offered(third) == [200, 100]
