"""Give an owner the files of the project, one signed URL each."""

from giornata.control.access.permissions import require_admin
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.storage.signed_urls import download
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.project.project_transfer import ExportedFiles, ExportFiles


def export_files(ctx: Context, caller: Caller, request: ExportFiles) -> ExportedFiles:
    """Return where to get each file of the caller's project.

    Raises Forbidden unless the caller owns the project, and InvalidInput with every file that the project does not
    have.
    """
    require_admin(caller)
    with ctx.store.read() as tx:
        found = tx.uploads.blobs(caller.project_id, sorted(set(request.sha256s)))
    faults = [
        Fault(where=f"sha256s.{number}", message=f"there are no bytes with sha256 {sha256}", hint="leave it out")
        for number, sha256 in enumerate(request.sha256s)
        if sha256 not in found
    ]
    if faults:
        raise InvalidInput(faults)
    blobs = (found[sha256] for sha256 in request.sha256s)
    return ExportedFiles(
        items=tuple(download(ctx, sha256=blob.sha256, size_bytes=blob.size_bytes, key=blob.key) for blob in blobs)
    )
