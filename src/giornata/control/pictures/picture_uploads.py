"""Give a lease signed PUTs for its pictures, and find out what storage has of them."""

from collections.abc import Collection, Mapping

from giornata.control.context import Context
from giornata.domain.errors import Fault, InvalidInput, LeaseLost
from giornata.domain.picture import lease_folder, picture_key
from giornata.protocol.pictures import DrawnPicture, PictureUpload, PictureUploads, PictureUploadUrls


def picture_uploads(ctx: Context, attempt_id: str, request: PictureUploads) -> PictureUploadUrls:
    """Return a signed PUT for each of these pictures that the lease still has to draw. Writes no row.

    The URL signs key, size and checksum. Raises LeaseLost, and InvalidInput with every fault.
    """
    faults = [fault for number, each in enumerate(request.pictures) for fault in file_faults(ctx, number, each)]
    if faults:
        raise InvalidInput(faults)
    with ctx.store.read() as tx:
        rows = tx.picture_leases.of_live_lease(attempt_id)
    if rows is None:
        raise LeaseLost(f"attempt {attempt_id} has ended")
    projects = {(row.order_id, row.number): row.project_id for row in rows}
    signed = []
    for each in request.pictures:
        project_id = projects.get((each.order_id, each.number))
        if project_id is None or each.sha256 is None or each.size_bytes is None:
            continue
        put = ctx.blobs.sign_put(
            picture_key(project_id, attempt_id, each.sha256),
            size_bytes=each.size_bytes,
            sha256=each.sha256,
            expires_in_s=round(ctx.policy.upload_url_s),
        )
        signed.append(
            PictureUpload(order_id=each.order_id, number=each.number, url=put.url, headers=dict(put.headers))
        )
    return PictureUploadUrls(uploads=tuple(signed))


def file_faults(ctx: Context, number: int, drawn: DrawnPicture) -> list[Fault]:
    """Return the faults of one file: a size is missing, or too large."""
    if drawn.sha256 is None:
        return []
    where, most = f"pictures.{number}.size_bytes", ctx.policy.max_picture_bytes
    if drawn.size_bytes is None:
        return [Fault(where=where, message="is missing", hint="say the size of the file of this sha256")]
    if drawn.size_bytes > most:
        return [Fault(where=where, message=f"is {drawn.size_bytes} bytes; at most {most} are taken")]
    return []


def stored_sizes(ctx: Context, attempt_id: str, projects: Collection[str]) -> Mapping[str, int]:
    """Return the sizes of the lease's objects by key, from one listing for each project.

    A key has the sha256, and the URL signed that checksum: an object that is there has the right bytes.
    """
    return {
        found.key: found.size_bytes
        for project_id in sorted(projects)
        for found in ctx.blobs.list(lease_folder(project_id, attempt_id))
    }
