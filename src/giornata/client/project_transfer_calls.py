"""The HTTP calls that carry a project into another one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from giornata.client.connection import Connection
from giornata.client.downloads import download_file
from giornata.client.operator_calls import quoted
from giornata.protocol.jobs import Job
from giornata.protocol.project_transfer import (
    ExportedFiles,
    ExportFiles,
    ImportedHistory,
    ImportHistory,
    ImportJob,
)
from giornata.protocol.uploads import Download

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

    def import_history(self, job_id: str, history: ImportHistory) -> ImportedHistory:
        """Write metrics and log lines of an imported job. May be repeated."""
        path = f"/v1/import/jobs/{quoted(job_id)}/history"
        return self._connection.call("POST", path, ImportedHistory, body=history)
