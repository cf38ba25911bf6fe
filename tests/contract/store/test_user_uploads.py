"""Uploads of users and attempts, verification, caches."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import ANN, BOB, NODE, Bytes, claim, have, move_in, new_job, upload_key

from giornata.control.context import Context
from giornata.control.jobs.stop_job import cancel
from giornata.control.policy import Policy
from giornata.control.ports.blobs import Blobs, Stored
from giornata.control.storage.uploads import (
    commit_cache,
    complete_upload,
    get_cache,
    renew_attempt_upload,
    renew_upload,
    request_attempt_uploads,
    request_uploads,
)
from giornata.control.storage.verify_upload import verify_upload
from giornata.control.timestamps import instant
from giornata.domain.errors import (
    BlobMismatch,
    BlobMissing,
    Forbidden,
    GiornataError,
    InvalidInput,
    LeaseLost,
    NotFound,
)
from giornata.domain.files.transfers import SINGLE_PUT_BELOW_BYTES, plan_parts
from giornata.protocol.node.work import CommitCache
from giornata.protocol.uploads import CompleteUpload, FileToUpload, RenewParts, UploadRequest, UploadTicket
from giornata.store.database.database import Database
from giornata.store.schema import uploads

A, B = Bytes(b"a" * 100), Bytes(b"b" * 200)
LARGE = FileToUpload(sha256="d" * 64, size_bytes=SINGLE_PUT_BELOW_BYTES + 1)


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def ask(ctx: Context, *files: FileToUpload) -> tuple[UploadTicket, ...]:
    return request_uploads(ctx, ANN, UploadRequest(files=files)).items


def sent(ctx: Context, content: Bytes, data: bytes | None = None) -> str:
    """An open upload of ANN whose bytes are in storage."""
    (ticket,) = ask(ctx, content.file)
    ctx.blobs.write(upload_key(ctx, "ann", ticket.upload_id or ""), [content.data if data is None else data])
    return ticket.upload_id or ""


def blob_key(ctx: Context, project_id: str, content: Bytes) -> str | None:
    with ctx.store.read() as tx:
        blob = tx.uploads.blobs(project_id, [content.sha256]).get(content.sha256)
    return None if blob is None else blob.key


def test_upload_request_asks_only_for_blobs_that_the_project_lacks(ctx: Context) -> None:
    have(ctx, ANN, A.data)
    old, new = ask(ctx, A.file, B.file, B.file)
    assert (old.exists, old.put, old.sha256) == (True, None, A.sha256)
    assert (new.exists, new.sha256) == (False, B.sha256)
    assert new.put is not None
    (bobs,) = request_uploads(ctx, BOB, UploadRequest(files=(A.file,))).items
    assert not bobs.exists


def test_d36_urls_are_for_an_object_of_the_project_that_is_nobody_elses(ctx: Context) -> None:
    first, second = ask(ctx, A.file), ask(ctx, A.file)
    keys = {upload_key(ctx, "ann", ticket.upload_id or "") for ticket in (*first, *second)}
    assert len(keys) == 2
    for key in keys:
        assert key.split("/")[:2] == ["ann", f"{instant(ctx.clock.now_ms()):%Y%m}"]
        assert key.endswith(f"/{A.sha256}")


def test_d37_and_d111_bounds_are_checked_whole_and_nothing_is_opened(ctx: Context, store: Database) -> None:
    have(ctx, ANN, A.data)
    ctx = replace(ctx, policy=Policy(max_upload_bytes=1000))
    with pytest.raises(InvalidInput) as caught:
        ask(
            ctx,
            B.file,
            FileToUpload(sha256="e" * 64, size_bytes=1001, name="film.mp4"),
            FileToUpload(sha256=B.sha256, size_bytes=7, name="half.png"),
            FileToUpload(sha256=A.sha256, size_bytes=8, name="other.png"),
        )
    assert [fault.where for fault in caught.value.faults] == ["film.mp4", "half.png", "other.png"]
    with store.read() as tx:
        opened = tx.connection.scalars(sa.select(uploads.c.sha256)).all()
    assert opened == [A.sha256], "the refused request opened uploads"


def test_a_request_cannot_have_more_parts_signed_than_a_reply_should_hold(ctx: Context) -> None:
    huge = [FileToUpload(sha256=f"{number:064x}", size_bytes=8 * 2**30) for number in range(5)]
    with pytest.raises(InvalidInput, match="parts"):
        ask(ctx, *huge)


def test_completing_verifies_the_bytes_and_may_be_repeated(ctx: Context) -> None:
    upload_id = sent(ctx, A)
    blob = complete_upload(ctx, ANN, upload_id, CompleteUpload())
    assert (blob.sha256, blob.size_bytes) == (A.sha256, 100)
    assert complete_upload(ctx, ANN, upload_id, CompleteUpload()) == blob
    assert blob_key(ctx, "ann", A) == upload_key(ctx, "ann", upload_id)
    assert renew_upload(ctx, ANN, upload_id, RenewParts()).exists


def test_upload_of_wrong_bytes_is_deleted_and_both_hashes_are_named(ctx: Context) -> None:
    upload_id = sent(ctx, A, data=b"something else")
    key = upload_key(ctx, "ann", upload_id)
    with pytest.raises(BlobMismatch, match=rf"100 bytes with sha256 {A.sha256}.*14 bytes") as caught:
        complete_upload(ctx, ANN, upload_id, CompleteUpload())
    assert Bytes(b"something else").sha256 in str(caught.value)
    with pytest.raises(BlobMissing):
        ctx.blobs.digest(key)
    with pytest.raises(NotFound):
        complete_upload(ctx, ANN, upload_id, CompleteUpload())
    assert blob_key(ctx, "ann", A) is None
    have(ctx, ANN, A.data)


def test_an_upload_without_bytes_does_not_complete(ctx: Context) -> None:
    (ticket,) = ask(ctx, A.file)
    with pytest.raises(BlobMissing):
        complete_upload(ctx, ANN, ticket.upload_id or "", CompleteUpload())


def test_the_same_bytes_twice_leave_one_object(ctx: Context) -> None:
    first, second = sent(ctx, A), sent(ctx, A)
    keys = [upload_key(ctx, "ann", upload_id) for upload_id in (first, second)]
    for upload_id in (first, second):
        complete_upload(ctx, ANN, upload_id, CompleteUpload())
    assert blob_key(ctx, "ann", A) == keys[0]
    assert [found.key for found in ctx.blobs.list("ann/")] == [keys[0]]


def test_completing_from_many_threads_leaves_one_blob(ctx: Context) -> None:
    sent_twice = [sent(ctx, A) for _ in range(3)] * 2
    with ThreadPoolExecutor(6) as pool:
        blobs = list(pool.map(lambda upload_id: complete_upload(ctx, ANN, upload_id, CompleteUpload()), sent_twice))
    assert len(set(blobs)) == 1
    assert [found.key for found in ctx.blobs.list("ann/")] == [blob_key(ctx, "ann", A)]


class Overtaken:
    """Storage that is so slow to read that the same request, sent again, is through before."""

    def __init__(self, blobs: Blobs, repeat: Callable[[], object]) -> None:
        self._blobs, self._repeat = blobs, repeat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    def digest(self, key: str) -> Stored:
        self._repeat()
        return self._blobs.digest(key)


def test_a_completion_that_its_repeat_has_overtaken(ctx: Context) -> None:
    first, second = sent(ctx, A), sent(ctx, A)
    complete_upload(ctx, ANN, first, CompleteUpload())
    blobs = Overtaken(ctx.blobs, lambda: complete_upload(ctx, ANN, second, CompleteUpload()))
    slow = replace(ctx, blobs=cast(Blobs, blobs))
    assert complete_upload(slow, ANN, second, CompleteUpload()).sha256 == A.sha256
    assert [found.key for found in ctx.blobs.list("ann/")] == [blob_key(ctx, "ann", A)]


def test_bytes_that_are_gone_are_missed_whoever_was_quicker(ctx: Context) -> None:
    upload_id = sent(ctx, A)
    with ctx.store.read() as tx:
        upload = tx.uploads.get(upload_id, project_id=ANN.project_id)
    assert upload is not None
    slow = replace(ctx, blobs=cast(Blobs, Overtaken(ctx.blobs, lambda: ctx.blobs.delete(upload.key))))
    with pytest.raises(BlobMissing):
        complete_upload(slow, ANN, upload_id, CompleteUpload())


def test_large_files_come_in_parts_whose_urls_can_be_renewed(ctx: Context, clock: ManualClock) -> None:
    (ticket,) = ask(ctx, LARGE)
    assert ticket.put is None
    assert [part.size_bytes for part in ticket.parts] == plan_parts(LARGE.size_bytes)
    clock.advance_s(3600)
    renewed = renew_upload(ctx, ANN, ticket.upload_id or "", RenewParts(numbers=(2,)))
    assert [part.number for part in renewed.parts] == [2]
    assert renewed.parts[0].request.expires_at > ticket.parts[1].request.expires_at
    with pytest.raises(InvalidInput, match="no part 4"):
        renew_upload(ctx, ANN, ticket.upload_id or "", RenewParts(numbers=(1, 4)))


def test_d35_uploads_of_another_project_do_not_exist(ctx: Context) -> None:
    upload_id = sent(ctx, A)
    for unknown in (upload_id, "up_unknown", "up\x00"):
        with pytest.raises(NotFound, match="there is no upload"):
            complete_upload(ctx, BOB, unknown, CompleteUpload())
        with pytest.raises(NotFound, match="there is no upload"):
            renew_upload(ctx, BOB, unknown, RenewParts())
    with pytest.raises(BlobMissing):
        verify_upload(ctx, "bob", A.sha256, 100, upload_id, ())
    for forbidden in (
        lambda: request_uploads(ctx, NODE, UploadRequest(files=(A.file,))),
        lambda: renew_upload(ctx, NODE, upload_id, RenewParts()),
        lambda: complete_upload(ctx, NODE, upload_id, CompleteUpload()),
    ):
        with pytest.raises(Forbidden):
            forbidden()


@pytest.mark.parametrize(
    ("sha256", "size_bytes", "error"),
    [(A.sha256, 100, None), (A.sha256, 99, BlobMismatch), (B.sha256, 200, BlobMissing)],
)
def test_a_commit_without_upload_needs_the_blob(
    ctx: Context, sha256: str, size_bytes: int, error: type[GiornataError] | None
) -> None:
    have(ctx, ANN, A.data)
    if error is None:
        verify_upload(ctx, "ann", sha256, size_bytes, None, ())
        return
    with pytest.raises(error):
        verify_upload(ctx, "ann", sha256, size_bytes, None, ())


def test_an_upload_vouches_only_for_what_it_was_opened_for(ctx: Context) -> None:
    upload_id = sent(ctx, A)
    with pytest.raises(BlobMismatch, match="was opened for"):
        verify_upload(ctx, "ann", B.sha256, 200, upload_id, ())


# ---- attempts


def test_d36_an_attempt_writes_below_its_own_id_and_renews_only_its_own(ctx: Context) -> None:
    new_job(ctx)
    lease = claim(ctx)
    (ticket,) = request_attempt_uploads(ctx, lease.attempt_id, UploadRequest(files=(A.file,))).items
    upload_id = ticket.upload_id or ""
    assert upload_key(ctx, "ann", upload_id).startswith(f"ann/{lease.attempt_id}/")
    assert renew_attempt_upload(ctx, lease.attempt_id, upload_id, RenewParts()).put is not None
    (users,) = ask(ctx, A.file)
    with pytest.raises(NotFound):
        renew_attempt_upload(ctx, lease.attempt_id, users.upload_id or "", RenewParts())
    with pytest.raises(NotFound):
        complete_upload(ctx, ANN, upload_id, CompleteUpload())


def test_d2_an_attempt_that_has_ended_gets_no_urls_and_commits_nothing(ctx: Context) -> None:
    job = new_job(ctx)
    lease = claim(ctx)
    have(ctx, ANN, A.data)
    commit = CommitCache(sha256=A.sha256, size_bytes=100)
    (ticket,) = request_attempt_uploads(ctx, lease.attempt_id, UploadRequest(files=(B.file,))).items
    cancel(ctx, ANN, job.id)
    for attempt_id in (lease.attempt_id, "att_unknown"):
        for late in (
            lambda late=attempt_id: request_attempt_uploads(ctx, late, UploadRequest(files=(B.file,))),
            lambda late=attempt_id: renew_attempt_upload(ctx, late, ticket.upload_id or "", RenewParts()),
            lambda late=attempt_id: get_cache(ctx, late, "latents"),
            lambda late=attempt_id: commit_cache(ctx, late, "latents", commit),
        ):
            with pytest.raises(LeaseLost):
                late()
    with ctx.store.read() as tx:
        assert tx.uploads.cache("ann", "latents") is None


def test_the_first_commit_of_a_cache_key_wins_within_the_project(ctx: Context) -> None:
    new_job(ctx)
    lease = claim(ctx)
    have(ctx, ANN, A.data)
    have(ctx, ANN, B.data)
    assert get_cache(ctx, lease.attempt_id, "latents:1").download is None
    first = commit_cache(ctx, lease.attempt_id, "latents:1", CommitCache(sha256=A.sha256, size_bytes=100))
    again = commit_cache(ctx, lease.attempt_id, "latents:1", CommitCache(sha256=B.sha256, size_bytes=200))
    assert (first.sha256, first.superfluous) == (A.sha256, False)
    assert (again.sha256, again.size_bytes, again.superfluous) == (A.sha256, 100, True)
    found = get_cache(ctx, lease.attempt_id, "latents:1").download
    assert found is not None
    assert found.sha256 == A.sha256
    new_job(ctx, BOB)
    bobs = claim(ctx, machine="m2", node="node_00000002")
    assert get_cache(ctx, bobs.attempt_id, "latents:1").download is None
    with pytest.raises(InvalidInput, match="key"):
        get_cache(ctx, lease.attempt_id, "../x")
