"""Routes that carry a project into another one; `giornata project export` and `import` call them."""

from fastapi import APIRouter, Response, status

from giornata.api.replies.openapi import USER, USER_CHANGE
from giornata.api.requests.callers import Ctx, User
from giornata.api.requests.lists import JobId
from giornata.control.projects import export_files as exports
from giornata.control.projects import import_history as histories
from giornata.control.projects import import_job as imports
from giornata.control.projects import import_pictures as pictures
from giornata.protocol.jobs import Job
from giornata.protocol.project.project_transfer import (
    ExportedFiles,
    ExportFiles,
    ImportedHistory,
    ImportedPictures,
    ImportHistory,
    ImportJob,
    ImportPictures,
)
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1", tags=["project transfer"])


@router.post("/export/files", responses=USER)
def export_files(ctx: Ctx, caller: User, body: Json[ExportFiles]) -> ExportedFiles:
    """Return signed URLs of files of the project, for an export."""
    return exports.export_files(ctx, caller, body)


@router.post(
    "/import/jobs",
    responses=USER | {200: {"model": Job, "description": "This job was imported before."}},
    status_code=status.HTTP_201_CREATED,
)
def import_job(ctx: Ctx, caller: User, body: Json[ImportJob], response: Response) -> Job:
    """Import a job that ended in another project. The status is 200 if it was imported before."""
    job, made = imports.import_job(ctx, caller, body)
    if not made:
        response.status_code = status.HTTP_200_OK
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job


@router.post("/import/jobs/{job_id}/pictures", responses=USER_CHANGE)
def import_pictures(ctx: Ctx, caller: User, job_id: JobId, body: Json[ImportPictures]) -> ImportedPictures:
    """Import pictures of an imported order, with stars and tags. May be repeated."""
    return pictures.import_pictures(ctx, caller, job_id, body)


@router.post("/import/jobs/{job_id}/history", responses=USER_CHANGE)
def import_history(ctx: Ctx, caller: User, job_id: JobId, body: Json[ImportHistory]) -> ImportedHistory:
    """Import metrics, log lines, attempts and events of an imported job. May be repeated."""
    return histories.import_history(ctx, caller, job_id, body)
