"""Routes for the end of life: deletion, retention, pins."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from giornata.api.replies.openapi import USER, USER_CHANGE, USER_ITEM
from giornata.api.requests.callers import Ctx, User
from giornata.api.requests.lists import JobId
from giornata.control.end_of_life import delete_dataset as datasets
from giornata.control.end_of_life import delete_job as jobs
from giornata.control.end_of_life import delete_project as projects
from giornata.control.end_of_life import pins, retention
from giornata.protocol.project.end_of_life import (
    PIN_PATTERN,
    Deletion,
    Pin,
    PinList,
    ProjectRetention,
    RetentionPreview,
    SetRetention,
)
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1", tags=["end of life"])
ProjectId = Annotated[str, Path(max_length=64)]
Cancel = Annotated[bool, Query(description="Cancel jobs that have not ended. Default: refuse to delete them.")]
Target = Annotated[
    str, Path(max_length=80, pattern=PIN_PATTERN, description="Id of a job or dataset, or JOB@STEP of a checkpoint.")
]


@router.delete("/jobs/{job_id}", responses=USER_CHANGE)
def delete_job(ctx: Ctx, caller: User, job_id: JobId, cancel: Cancel = False) -> Deletion:
    """Delete a job with its results, checkpoints, log, metrics and events. Its cost stays."""
    return jobs.delete_job(ctx, caller, job_id, cancel=cancel)


@router.delete("/datasets/{dataset_id}", responses=USER_CHANGE)
def delete_dataset(ctx: Ctx, caller: User, dataset_id: Annotated[str, Path(max_length=64)]) -> Deletion:
    """Delete a dataset and the pictures that nothing else refers to."""
    return datasets.delete_dataset(ctx, caller, dataset_id)


@router.delete("/projects/{project_id}", responses=USER_CHANGE)
def delete_project(
    ctx: Ctx,
    caller: User,
    project_id: ProjectId,
    confirm: Annotated[
        str, Query(min_length=1, max_length=64, description="Id of the project again, as a confirmation.")
    ],
    cancel: Cancel = False,
) -> Deletion:
    """Delete a project with all that it owns. Its keys and members end at once; its cost stays."""
    return projects.delete_project(ctx, caller, project_id, confirm=confirm, cancel=cancel)


@router.get("/projects/{project_id}/retention", responses=USER_ITEM)
def get_retention(ctx: Ctx, caller: User, project_id: ProjectId) -> ProjectRetention:
    """Return how long the project keeps each class of data."""
    return retention.read_retention_of(ctx, caller, project_id)


@router.put("/projects/{project_id}/retention", responses=USER_ITEM)
def set_retention(ctx: Ctx, caller: User, project_id: ProjectId, body: Json[SetRetention]) -> ProjectRetention:
    """Set how long the project keeps each class of data. A class that you leave out has no limit."""
    return retention.set_retention(ctx, caller, project_id, body)


@router.get("/projects/{project_id}/retention/preview", responses=USER_ITEM)
def preview_retention(ctx: Ctx, caller: User, project_id: ProjectId) -> RetentionPreview:
    """Return what retention would delete now."""
    return retention.preview_retention(ctx, caller, project_id)


@router.post("/projects/{project_id}/retention/preview", responses=USER_ITEM)
def preview_other_retention(
    ctx: Ctx, caller: User, project_id: ProjectId, body: Json[SetRetention]
) -> RetentionPreview:
    """Return what retention would delete now with these times. Nothing is changed."""
    return retention.preview_retention(ctx, caller, project_id, body)


@router.get("/pins", responses=USER)
def list_pins(ctx: Ctx, caller: User) -> PinList:
    """Return the pinned jobs, datasets and checkpoints of the project."""
    return pins.list_pins(ctx, caller)


@router.put("/pins/{target}", responses=USER_ITEM)
def pin(ctx: Ctx, caller: User, target: Target) -> Pin:
    """Keep a job, a dataset or a checkpoint from retention and from deletion."""
    return pins.set_pin(ctx, caller, target, pinned=True)


@router.delete("/pins/{target}", responses=USER_ITEM)
def unpin(ctx: Ctx, caller: User, target: Target) -> Pin:
    """Unpin a job, a dataset or a checkpoint: retention and deletion may remove it again."""
    return pins.set_pin(ctx, caller, target, pinned=False)
