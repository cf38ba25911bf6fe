"""What is deleted is gone with its bytes; what others use stays, and so does the bill."""

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import (
    ANN,
    ANN_ADMIN,
    BOB,
    PICTURES,
    ROOT,
    Bytes,
    claim,
    end,
    have,
    move_in,
    new_dataset,
    new_job,
    progress,
    train,
)

from giornata.control.attempts.commit import commit_artifact
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.end_of_life.delete_dataset import delete_dataset
from giornata.control.end_of_life.delete_job import delete_job, hide_job
from giornata.control.end_of_life.delete_project import END_OF_TIME, SETTLED_AFTER_MS, delete_project
from giornata.control.end_of_life.finish_deletions import finish_deletions
from giornata.control.end_of_life.pins import list_pins, set_pin
from giornata.control.jobs.reading.read_jobs import get_job, list_jobs
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.submit import submit
from giornata.control.storage.collect import collect
from giornata.control.storage.datasets import get_dataset
from giornata.control.storage.uploads import request_attempt_uploads, request_uploads
from giornata.domain.errors import Conflict, Forbidden, IllegalTransition, InvalidInput, NotFound
from giornata.domain.files.transfers import SINGLE_PUT_BELOW_BYTES
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import CommitArtifact, Lease
from giornata.protocol.uploads import FileToUpload, UploadRequest
from giornata.store.database.database import Database
from giornata.store.schema import (
    artifacts,
    attempts,
    blobs,
    checkpoints,
    deletions,
    events,
    jobs,
    keys,
    ledger,
    logs,
    metrics,
    uploads,
)


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def below(ctx: Context, project_id: str) -> set[str]:
    """The sha256s of a project's objects."""
    return {found.key.rpartition("/")[2] for found in ctx.blobs.list(f"{project_id}/")}


def count(store: Database, table: sa.Table, *conditions: sa.ColumnElement[bool]) -> int:
    with store.read() as tx:
        return tx.connection.scalar(sa.select(sa.func.count()).select_from(table).where(*conditions)) or 0


def ended_job(ctx: Context, caller: Caller = ANN, *, checkpoint: bytes = b"step 5") -> tuple[str, Lease]:
    """A job that failed after it had committed a checkpoint, a result, and some of its history."""
    job = new_job(ctx, caller)
    lease = claim(ctx)
    progress(ctx, lease, step=5, committed=checkpoint)
    lora = Bytes(b"the lora of " + job.id.encode())
    commit = CommitArtifact(name="lora.safetensors", sha256=have(ctx, caller, lora.data), size_bytes=len(lora.data))
    commit_artifact(ctx, lease.attempt_id, commit)
    end(ctx, lease, Reason.CRASHED, JobEvent.FAIL, step=5)
    return job.id, lease


def test_deleted_job_leaves_no_row_and_no_byte_but_its_bill(ctx: Context, store: Database) -> None:
    job_id, _ = ended_job(ctx)
    bills = count(store, ledger)
    pictures = {Bytes(data).sha256 for data in PICTURES}
    assert below(ctx, "ann") > pictures
    told = delete_job(ctx, ANN, job_id)
    assert (told.objects, told.finished) == (2, True)
    assert below(ctx, "ann") == pictures  # the dataset stays
    for table in (checkpoints, artifacts, logs, metrics):
        assert count(store, table) == 0
    assert count(store, events, events.c.data.cast(sa.Text) != "{}") == 0
    assert count(store, ledger) == bills > 0
    assert count(store, deletions, deletions.c.target_id == job_id, deletions.c.finished_at_ms.is_not(None)) == 1


def test_deleted_job_is_not_found_and_its_spec_is_blank(ctx: Context, store: Database) -> None:
    job_id, _ = ended_job(ctx)
    delete_job(ctx, ANN, job_id)
    for ask in (get_job, retry, cancel, delete_job):
        with pytest.raises(NotFound):
            ask(ctx, ANN, job_id)
    wanted = {"states": (), "labels": {}, "kind": None, "match": None, "include": frozenset()}
    assert list_jobs(ctx, ANN, **wanted, cursor=None, limit=10).items == ()
    with store.read() as tx:
        row = tx.connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()
        said = tx.connection.scalars(sa.select(attempts.c.message).where(attempts.c.job_id == job_id)).all()
    assert (row.spec, row.labels, row.error, row.result, row.name) == ({}, {}, None, {}, job_id)
    assert set(said) == {None}


def test_deletion_of_a_running_job_is_refused_unless_it_is_to_be_canceled(ctx: Context) -> None:
    job = new_job(ctx)
    lease = claim(ctx)
    progress(ctx, lease, step=5, committed=b"step 5")
    with pytest.raises(IllegalTransition, match=r"running .* --cancel"):
        delete_job(ctx, ANN, job.id)
    assert Bytes(b"step 5").sha256 in below(ctx, "ann")
    delete_job(ctx, ANN, job.id, cancel=True)
    assert Bytes(b"step 5").sha256 not in below(ctx, "ann")


def test_another_project_cannot_delete_a_job(ctx: Context) -> None:
    job_id, _ = ended_job(ctx)
    with pytest.raises(NotFound):
        delete_job(ctx, BOB, job_id)
    assert get_job(ctx, ANN, job_id).id == job_id


def test_checkpoint_that_a_retry_starts_from_outlives_the_job(ctx: Context) -> None:
    job_id, _ = ended_job(ctx)
    again = retry(ctx, ANN, job_id)
    delete_job(ctx, ANN, job_id)
    assert Bytes(b"step 5").sha256 in below(ctx, "ann")
    lease = claim(ctx, machine="m2", node="node_00000002")
    assert (lease.job_id, [each.step for each in lease.checkpoints]) == (again.id, [5])


def test_equal_bytes_of_another_project_stay(ctx: Context) -> None:
    job_id, _ = ended_job(ctx)
    theirs, _ = ended_job(ctx, BOB)
    delete_job(ctx, ANN, job_id)
    assert Bytes(b"step 5").sha256 in below(ctx, "bob")
    assert Bytes(b"step 5").sha256 not in below(ctx, "ann")
    assert get_job(ctx, BOB, theirs).id == theirs


def test_parts_that_an_attempt_was_sending_are_dropped(ctx: Context, store: Database) -> None:
    job = new_job(ctx)
    lease = claim(ctx)
    large = FileToUpload(sha256="d" * 64, size_bytes=SINGLE_PUT_BELOW_BYTES)
    request_attempt_uploads(ctx, lease.attempt_id, UploadRequest(files=(large,)))
    assert count(store, uploads, uploads.c.attempt_id.is_not(None)) == 1
    delete_job(ctx, ANN, job.id, cancel=True)
    assert count(store, uploads, uploads.c.attempt_id.is_not(None)) == 0
    assert list(ctx.blobs.stale_multiparts(END_OF_TIME)) == []


def test_deleted_dataset_leaves_no_byte_that_no_other_dataset_has(ctx: Context) -> None:
    first, second = new_dataset(ctx), new_dataset(ctx, caption="another")
    only = have(ctx, ANN, b"nobody's")
    told = delete_dataset(ctx, ANN, first.id)
    assert told.objects == 0
    assert get_dataset(ctx, ANN, second.id).items
    assert delete_dataset(ctx, ANN, second.id).objects == len(PICTURES)
    assert below(ctx, "ann") == {only}
    for dataset in (first, second):
        with pytest.raises(NotFound):
            get_dataset(ctx, ANN, dataset.id)


def test_dataset_that_a_job_reads_is_not_deleted_before_its_end(ctx: Context) -> None:
    dataset = new_dataset(ctx)
    job, _ = submit(ctx, ANN, train(dataset), None)
    with pytest.raises(Conflict, match=job.id):
        delete_dataset(ctx, ANN, dataset.id)
    cancel(ctx, ANN, job.id)
    delete_dataset(ctx, ANN, dataset.id)
    with pytest.raises(InvalidInput, match="deleted"):
        retry(ctx, ANN, job.id)


def test_pinned_things_are_not_deleted_until_they_are_unpinned(ctx: Context) -> None:
    job_id, _ = ended_job(ctx)
    dataset = new_dataset(ctx)
    for target in (f"{job_id}@5", job_id, dataset.id):
        assert set_pin(ctx, ANN, target, pinned=True).pinned
    assert [each.target for each in list_pins(ctx, ANN).items] == [job_id, dataset.id, f"{job_id}@5"]
    for delete in (lambda: delete_job(ctx, ANN, job_id), lambda: delete_dataset(ctx, ANN, dataset.id)):
        with pytest.raises(Conflict, match="pinned"):
            delete()
    for target in (f"{job_id}@5", job_id, dataset.id):
        set_pin(ctx, ANN, target, pinned=False)
    delete_job(ctx, ANN, job_id)
    delete_dataset(ctx, ANN, dataset.id)
    assert below(ctx, "ann") == set()


@pytest.mark.parametrize("target", ["job_none", "ds_none", "job_none@5", "no such thing", "x" * 200])
def test_pin_of_an_unknown_thing_is_not_found(ctx: Context, target: str) -> None:
    with pytest.raises(NotFound):
        set_pin(ctx, ANN, target, pinned=True)


def test_pin_of_another_project_is_not_found(ctx: Context) -> None:
    job_id, _ = ended_job(ctx)
    for target in (job_id, f"{job_id}@5"):
        with pytest.raises(NotFound):
            set_pin(ctx, BOB, target, pinned=True)


def test_deleted_project_leaves_no_object_and_no_key(ctx: Context, store: Database, clock: ManualClock) -> None:
    job_id, _ = ended_job(ctx)
    ended_job(ctx, BOB)
    large = FileToUpload(sha256="d" * 64, size_bytes=SINGLE_PUT_BELOW_BYTES)
    request_uploads(ctx, ANN, UploadRequest(files=(large,)))
    theirs = below(ctx, "bob")
    told = delete_project(ctx, ANN_ADMIN, "ann", confirm="ann")
    assert (told.objects, told.finished) == (6, False)
    assert below(ctx, "ann") == set()
    assert below(ctx, "bob") == theirs
    assert count(store, blobs, blobs.c.project_id == "ann") == 0
    assert count(store, keys, keys.c.project_id == "ann", keys.c.revoked_at_ms.is_(None)) == 0
    assert count(store, ledger, ledger.c.project_id == "ann") > 0
    assert finish_deletions(ctx) == 0  # a request that was under way may still write
    clock.advance_s(SETTLED_AFTER_MS / 1000)
    assert finish_deletions(ctx) == 1
    assert finish_deletions(ctx) == 0
    with pytest.raises(NotFound):
        get_job(ctx, ANN, job_id)


def test_row_written_while_a_project_is_closed_is_deleted_in_the_next_round(
    ctx: Context, store: Database, clock: ManualClock
) -> None:
    delete_project(ctx, ANN_ADMIN, "ann", confirm="ann")
    dataset = new_dataset(ctx)  # by a request that was let in before
    submit(ctx, ANN, train(dataset), None)
    clock.advance_s(SETTLED_AFTER_MS / 1000)
    assert finish_deletions(ctx) == 0  # something was found, so it looks once more
    assert below(ctx, "ann") == set()
    assert finish_deletions(ctx) == 1
    assert count(store, jobs, jobs.c.deleted_at_ms.is_(None), jobs.c.project_id == "ann") == 0


def test_deletion_of_a_project_is_refused_without_its_name_or_right(ctx: Context) -> None:
    new_job(ctx)
    with pytest.raises(InvalidInput, match="confirm"):
        delete_project(ctx, ANN_ADMIN, "ann", confirm="bob")
    with pytest.raises(Forbidden):
        delete_project(ctx, ANN, "ann", confirm="ann")
    with pytest.raises(NotFound):
        delete_project(ctx, ANN_ADMIN, "bob", confirm="bob")
    with pytest.raises(Conflict, match="not ended"):
        delete_project(ctx, ANN_ADMIN, "ann", confirm="ann")
    with pytest.raises(Conflict, match="operator"):
        delete_project(ctx, ROOT, ROOT.project_id, confirm=ROOT.project_id)
    assert delete_project(ctx, ANN_ADMIN, "ann", confirm="ann", cancel=True).objects == len(PICTURES)


def test_deletion_whose_server_died_is_finished_by_the_loop(ctx: Context, store: Database) -> None:
    job_id, _ = ended_job(ctx)
    with store.begin() as tx:  # what a server does that dies before it deletes the first row
        job = tx.jobs.lock(job_id)
        assert job is not None
        hide_job(tx, ctx, ANN, job)
    assert finish_deletions(ctx) == 1
    assert below(ctx, "ann") == {Bytes(data).sha256 for data in PICTURES}
    assert count(store, checkpoints) == count(store, artifacts) == 0


def test_crash_between_rows_and_bytes_leaves_nothing_for_ever(
    ctx: Context, store: Database, clock: ManualClock
) -> None:
    job_id, _ = ended_job(ctx)
    with store.begin() as tx:  # what a server does that dies before it asks storage
        tx.deletions.empty_job(job_id, at_ms=clock.now_ms())
        tx.deletions.take_job_rows(job_id, limit=1000)
    assert Bytes(b"step 5").sha256 in below(ctx, "ann")
    clock.advance_s(ctx.policy.garbage_after_s + 1)
    collect(ctx)
    assert below(ctx, "ann") == {Bytes(data).sha256 for data in PICTURES}
