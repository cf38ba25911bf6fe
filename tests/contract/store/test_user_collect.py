"""Garbage: what is referred to stays, the rest goes."""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import ANN, BOB, Bytes, claim, have, move_in, new_dataset, new_job, progress, upload_key

from giornata.control.context import Context
from giornata.control.jobs.submission.submit import submit
from giornata.control.ports.blobs import Stored
from giornata.control.ports.node_queries.work_rows import ArtifactRow
from giornata.control.storage.collect import CollectReport, collect
from giornata.control.storage.uploads import commit_cache, complete_upload, request_uploads
from giornata.control.storage.verify_upload import verify_upload
from giornata.domain.errors import BlobMissing, NotFound
from giornata.domain.files.transfers import SINGLE_PUT_BELOW_BYTES
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.work import CommitCache
from giornata.protocol.uploads import CompleteUpload, FileToUpload, UploadRequest
from giornata.store.database.database import Database
from giornata.store.garbage import REFERRERS
from giornata.store.schema import blobs, idempotency, uploads

A = Bytes(b"a" * 100)
DAY_S = 24 * 3600
LARGE = FileToUpload(sha256="d" * 64, size_bytes=SINGLE_PUT_BELOW_BYTES)


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


@pytest.fixture
def age(clock: ManualClock, tmp_path: Path):
    """Lets time pass for the server, and for the files that were written before."""

    def pass_s(seconds: float) -> None:
        for path in (tmp_path / "blobs").rglob("*"):
            os.utime(path, (clock.now_ms() / 1000, clock.now_ms() / 1000))
        clock.advance_s(seconds)

    return pass_s


def asked(ctx: Context, file: FileToUpload) -> str:
    (ticket,) = request_uploads(ctx, ANN, UploadRequest(files=(file,))).items
    return ticket.upload_id or ""


def stored(ctx: Context) -> set[str]:
    return {found.key for found in ctx.blobs.list("")}


def referred(store: Database) -> set[str]:
    with store.read() as tx:
        return set(tx.connection.scalars(sa.select(blobs.c.key)))


def test_d33_uploads_that_nobody_completed_are_given_up_with_their_bytes(
    ctx: Context, store: Database, age, clock: ManualClock
) -> None:
    single, parts = asked(ctx, A.file), asked(ctx, LARGE)
    ctx.blobs.write(upload_key(ctx, "ann", single), [A.data])
    age(DAY_S)
    assert not collect(ctx)
    young = asked(ctx, LARGE)
    clock.advance_s(1)
    report = collect(ctx)
    assert (report.uploads, report.stray_objects, report.multiparts) == (2, 0, 0)
    assert bool(report)
    assert stored(ctx) == set()
    with store.read() as tx:
        assert tx.connection.scalars(sa.select(uploads.c.id)).all() == [young]
    with pytest.raises(NotFound):
        complete_upload(ctx, ANN, parts, CompleteUpload())
    assert collect(ctx) == CollectReport()


def test_d33_parts_without_an_upload_are_aborted(ctx: Context, age, clock: ManualClock) -> None:
    ctx.blobs.begin_multipart("ann/202609/up_of_a_server_that_died/" + "e" * 64)
    age(DAY_S)
    assert collect(ctx).multiparts == 0
    clock.advance_s(1)
    assert collect(ctx).multiparts == 1
    assert collect(ctx).multiparts == 0


def test_objects_without_a_row_go_and_young_ones_stay(ctx: Context, age, tmp_path: Path) -> None:
    ctx.blobs.write("ann/202601/up_lost/" + A.sha256, [A.data])
    age(DAY_S + 1)
    ctx.blobs.write("ann/202609/up_new/" + A.sha256, [A.data])
    new = next((tmp_path / "blobs").rglob(f"up_new/{A.sha256}"))
    os.utime(new, (ctx.clock.now_ms() / 1000, ctx.clock.now_ms() / 1000))
    assert collect(ctx).stray_objects == 1
    assert stored(ctx) == {"ann/202609/up_new/" + A.sha256}


def test_bytes_that_were_verified_but_never_used_go_after_a_day(ctx: Context, store: Database, age) -> None:
    have(ctx, ANN, A.data)
    age(DAY_S)
    assert collect(ctx).blobs == 0
    age(1)
    assert collect(ctx).blobs == 1
    assert (stored(ctx), referred(store)) == (set(), set())
    with pytest.raises(BlobMissing):
        verify_upload(ctx, "ann", A.sha256, 100, None, ())
    have(ctx, ANN, A.data)


def test_bytes_that_somebody_was_told_exist_are_kept_for_another_day(ctx: Context, age) -> None:
    have(ctx, ANN, A.data)
    age(DAY_S - 1)
    request_uploads(ctx, ANN, UploadRequest(files=(A.file,)))
    age(2)
    assert collect(ctx).blobs == 0
    verify_upload(ctx, "ann", A.sha256, 100, None, ())
    age(DAY_S)
    assert collect(ctx).blobs == 0


def test_deleting_one_projects_copy_leaves_anothers(ctx: Context, age) -> None:
    dataset = new_dataset(ctx)
    for item in range(4):
        have(ctx, BOB, f"picture {item}".encode())
    age(DAY_S + 1)
    assert collect(ctx).blobs == 4
    assert len(stored(ctx)) == dataset.picture_count


def test_garbage_collection_keeps_blobs_that_jobs_and_datasets_refer_to(
    ctx: Context, store: Database, age, clock
) -> None:
    new_job(ctx)
    lease = claim(ctx)
    progress(ctx, lease, step=2, committed=b"two")
    have(ctx, ANN, A.data)
    commit_cache(ctx, lease.attempt_id, "latents", CommitCache(sha256=A.sha256, size_bytes=100))
    result = have(ctx, ANN, b"lora")
    with ctx.store.begin() as tx:
        job = tx.jobs.lock(lease.job_id)
        assert job is not None
        row = ArtifactRow(name="lora", attempt_id=lease.attempt_id, sha256=result, size_bytes=4)
        tx.artifacts.put(job, row, media_type="x/y", at_ms=clock.now_ms())
    before = stored(ctx)
    age(30 * DAY_S)
    assert collect(ctx).blobs == 0
    assert stored(ctx) == referred(store) == before


def test_requests_are_forgotten_after_their_time(ctx: Context, store: Database, age) -> None:
    submit(ctx, ANN, SubmitJob(kind="x-script", spec={}), "key-1")
    age(DAY_S)
    assert collect(ctx).requests == 0
    age(1)
    assert collect(ctx).requests == 1
    with store.read() as tx:
        assert tx.connection.scalar(sa.select(sa.func.count()).select_from(idempotency)) == 0


class DyingBlobs:
    """Storage that is away when something is to be deleted."""

    def __init__(self, blobs) -> None:
        self._blobs = blobs

    def __getattr__(self, name: str):
        return getattr(self._blobs, name)

    def delete(self, key: str) -> bool:
        raise ConnectionError("the collector dies here")


def test_a_collector_that_dies_halfway_leaves_what_the_next_one_finds(ctx: Context, store: Database, age) -> None:
    have(ctx, ANN, A.data)
    ctx.blobs.write(upload_key(ctx, "ann", asked(ctx, Bytes(b"b").file)), [b"b"])
    age(DAY_S + 1)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            collect(replace(ctx, blobs=DyingBlobs(ctx.blobs)))
    assert referred(store) == set()
    assert len(stored(ctx)) == 2
    assert collect(ctx).stray_objects == 2
    assert stored(ctx) == set()


class LateBlobs(DyingBlobs):
    """Storage in which a collector has run by the time that bytes were read back."""

    def __init__(self, blobs, ctx: Context) -> None:
        super().__init__(blobs)
        self._ctx = ctx

    def digest(self, key: str) -> Stored:
        found = self._blobs.digest(key)
        collect(self._ctx)
        return found


def test_an_upload_that_is_collected_while_it_is_verified_is_no_blob(ctx: Context, store: Database, age) -> None:
    upload_id = asked(ctx, A.file)
    ctx.blobs.write(upload_key(ctx, "ann", upload_id), [A.data])
    age(DAY_S + 1)
    with pytest.raises(BlobMissing, match="given up"):
        complete_upload(replace(ctx, blobs=LateBlobs(ctx.blobs, ctx)), ANN, upload_id, CompleteUpload())
    assert (stored(ctx), referred(store)) == (set(), set())


@pytest.mark.parametrize("seed", range(3))
def test_garbage_collection_in_random_schedules_deletes_no_referenced_blob(
    ctx: Context, store: Database, age, seed: int
) -> None:
    chance = random.Random(seed)
    new_job(ctx)
    lease = claim(ctx)
    for act in _acts(chance):
        data = f"bytes {chance.randrange(12)}".encode()
        if act == "wait":
            age(chance.choice([1, DAY_S / 2, DAY_S + 1]))
        elif act == "collect":
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda _: collect(ctx), range(2)))
        elif act == "have":
            have(ctx, ANN, data)
        elif act == "ask":
            ctx.blobs.write(upload_key(ctx, "ann", asked(ctx, Bytes(os.urandom(8)).file)), [b"x"])
        elif act == "checkpoint":
            progress(ctx, lease, step=chance.randrange(1000), committed=data)
        else:
            sha256 = have(ctx, ANN, data)
            commit_cache(
                ctx,
                lease.attempt_id,
                data.decode().replace(" ", ":"),
                CommitCache(sha256=sha256, size_bytes=len(data)),
            )
        with store.read() as tx:
            keys = tx.connection.execute(sa.select(blobs.c.key, blobs.c.sha256)).all()
        for key, sha256 in keys:
            assert ctx.blobs.digest(key).sha256 == sha256
    age(DAY_S + 1)
    collect(ctx)
    assert stored(ctx) == referred(store)
    assert {key.rsplit("/", 1)[1] for key in stored(ctx)} == _rows(store)


def _acts(chance: random.Random) -> Iterator[str]:
    for _ in range(40):
        yield chance.choices(["have", "ask", "checkpoint", "cache", "wait", "collect"], [3, 2, 2, 1, 3, 3])[0]


def _rows(store: Database) -> set[str]:
    """sha256s that a row refers to."""
    with store.read() as tx:
        return {sha256 for table in REFERRERS for sha256 in tx.connection.scalars(sa.select(table.c.sha256))}


def test_garbage_collection_removes_unfinished_uploads_of_killed_servers_after_a_day(
    ctx: Context, clock: ManualClock, tmp_path: Path
) -> None:
    left = tmp_path / "blobs" / "aside" / "half-an-upload"
    left.write_bytes(b"half")
    os.utime(left, (clock.now_ms() / 1000,) * 2)
    clock.advance_s(DAY_S - 60)
    assert collect(ctx).leftovers == 0
    assert left.exists()
    clock.advance_s(120)
    assert collect(ctx).leftovers == 1
    assert not left.exists()
