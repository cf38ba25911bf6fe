"""What is deleted leaves no object and no part of an upload, on a folder and on a real S3 server."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.contract.blobs.storage_under_test import ShiftedClock, StorageUnderTest
from tests.contract.store.test_deletion import ended_job
from tests.fixtures.contexts import CountedIds, FinePictures
from tests.fixtures.databases import new_sqlite, opened
from tests.fixtures.users import ANN, ANN_ADMIN, BOB, PICTURES, Bytes, claim, move_in, new_dataset, new_job

from giornata.control.context import Context
from giornata.control.end_of_life.delete_dataset import delete_dataset
from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.end_of_life.delete_project import END_OF_TIME, delete_project
from giornata.control.projects.import_job import import_job
from giornata.control.projects.import_pictures import import_pictures
from giornata.control.storage.uploads import request_attempt_uploads, request_uploads
from giornata.domain.files.transfers import SINGLE_PUT_BELOW_BYTES
from giornata.protocol.project.project_transfer import ImportedPicture, ImportJob, ImportPictures
from giornata.protocol.uploads import FileToUpload, UploadRequest

LARGE = UploadRequest(files=(FileToUpload(sha256="d" * 64, size_bytes=SINGLE_PUT_BELOW_BYTES),))


@pytest.fixture
def ctx(place: StorageUnderTest, tmp_path: Path) -> Iterator[Context]:
    with opened(new_sqlite(tmp_path)) as store:
        found = Context(
            store=store, blobs=place.blobs, clock=ShiftedClock(), names=CountedIds(), pictures=FinePictures()
        )
        move_in(found)
        yield found


def objects(ctx: Context, project_id: str) -> set[str]:
    return {found.key.rpartition("/")[2] for found in ctx.blobs.list(f"{project_id}/")}


def parts(ctx: Context) -> list[str]:
    return [stale.key for stale in ctx.blobs.stale_multiparts(END_OF_TIME)]


def test_deleted_job_and_dataset_leave_nothing_in_storage(ctx: Context) -> None:
    job_id, _ = ended_job(ctx)
    running = new_job(ctx)
    lease = claim(ctx, machine="m2", node="node_00000002")
    request_attempt_uploads(ctx, lease.attempt_id, LARGE)
    assert lease.job_id == running.id
    assert len(parts(ctx)) == 1
    assert delete_job(ctx, ANN, job_id).objects == 2
    delete_job(ctx, ANN, running.id, cancel=True)
    assert parts(ctx) == []
    assert objects(ctx, "ann") == {Bytes(data).sha256 for data in PICTURES}
    assert delete_dataset(ctx, ANN, new_dataset(ctx).id).objects == len(PICTURES)
    assert objects(ctx, "ann") == set()


def test_deleted_project_leaves_nothing_in_storage_and_harms_no_other(ctx: Context) -> None:
    ended_job(ctx)
    ended_job(ctx, BOB)
    request_uploads(ctx, ANN, LARGE)
    request_uploads(ctx, BOB, LARGE)
    theirs = objects(ctx, "bob")
    told = delete_project(ctx, ANN_ADMIN, "ann", confirm="ann")
    assert told.objects == len(PICTURES) + 2
    assert objects(ctx, "ann") == set()
    assert [key.partition("/")[0] for key in parts(ctx)] == ["bob"]
    assert objects(ctx, "bob") == theirs
    assert all(ctx.blobs.digest(found.key).sha256 in theirs for found in ctx.blobs.list("bob/"))


def test_imported_pictures_lie_in_storage_until_their_order_is_deleted(ctx: Context) -> None:
    file = Bytes(b"a picture that another installation drew")
    asked = {"imported_from": "job_far", "kind": "generate", "state": "succeeded", "history_follows": True}
    times = {"created_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T01:00:00Z"}
    spec = {"model": {"name": "some/model"}, "prompts": ["a fox"], "seed": 7}
    order, _ = import_job(ctx, ANN_ADMIN, ImportJob.model_validate({**asked, **times, "spec": spec}))
    picture = ImportedPicture(
        number=0, state="succeeded", place=1, sha256=file.sha256, size_bytes=len(file.data), starred=True
    )
    request = ImportPictures(pictures=(picture,))
    (upload,) = import_pictures(ctx, ANN_ADMIN, order.id, request).uploads
    put = upload.request
    httpx.put(put.url, headers=put.headers, content=file.data).raise_for_status()
    assert import_pictures(ctx, ANN_ADMIN, order.id, request).uploads == ()
    assert objects(ctx, "pictures/ann") == {file.sha256}
    assert delete_job(ctx, ANN_ADMIN, order.id).objects == 1
    assert objects(ctx, "pictures/ann") == set()
