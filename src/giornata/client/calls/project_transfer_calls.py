"""The HTTP calls that carry a project into another one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from giornata.client.calls.operator_calls import quoted
from giornata.client.connection import Connection
from giornata.client.storage.downloads import download_file
from giornata.client.storage.transfer import upload_file
from giornata.protocol.jobs import Job
from giornata.protocol.project.project_transfer import (
    ExportedFiles,
    ExportFiles,
    ImportedHistory,
    ImportedPicture,
    ImportedPictures,
    ImportHistory,
    ImportJob,
    ImportPictures,
)
from giornata.protocol.uploads import Download, SignedPart, SignedUrl, UploadTicket

FILES_PER_REQUEST = 20
"""Each file may be large, and its URL lives for an hour."""


class ProjectTransferCalls:
    """The part of `giornata.client.client.Client` that exports and imports a project. For an owner of the project."""

    _connection: Connection
    _http: httpx.Client

    def export_files(self, sha256s: Sequence[str]) -> Iterator[Download]:
        """Yield where to get files of the project. Raises InvalidInput for those that it does not have."""
        for begin in range(0, len(sha256s), FILES_PER_REQUEST):
            body = ExportFiles(sha256s=tuple(sha256s[begin : begin + FILES_PER_REQUEST]))
            yield from self._connection.call("POST", "/v1/export/files", ExportedFiles, body=body).items

    def download_export(self, found: Download, path: Path) -> Path:
        """Fetch a file, verified against its sha256. Raises BlobMismatch."""
        return download_file(self._http, found, path)

    def import_job(self, job: ImportJob) -> Job:
        """Take in a job that ended elsewhere. The same job again gives the job that was made the first time."""
        return self._connection.call("POST", "/v1/import/jobs", Job, body=job)

    def import_pictures(self, job_id: str, pictures: Sequence[ImportedPicture]) -> ImportedPictures:
        """Take in at most 64 pictures of an imported order. Send bytes where the reply has uploads, and repeat it."""
        path = f"/v1/import/jobs/{quoted(job_id)}/pictures"
        return self._connection.call("POST", path, ImportedPictures, body=ImportPictures(pictures=tuple(pictures)))

    def upload_picture(self, signed: SignedUrl, path: Path, *, sha256: str, size_bytes: int) -> None:
        """Send the bytes of one picture to storage. Raises what storage says."""
        ticket = UploadTicket(sha256=sha256, exists=False, put=signed)
        again = SignedPart(number=1, size_bytes=size_bytes, request=signed)
        upload_file(self._http, path, ticket, renew=lambda _: [again])

    def import_history(self, job_id: str, history: ImportHistory) -> ImportedHistory:
        """Write metrics, log lines and events of an imported job. May be repeated."""
        path = f"/v1/import/jobs/{quoted(job_id)}/history"
        return self._connection.call("POST", path, ImportedHistory, body=history)
