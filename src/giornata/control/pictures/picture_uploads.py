"""Give a lease signed PUTs for its pictures, and find out what storage has of them."""

from collections.abc import Collection, Mapping

from giornata.control.context import Context
from giornata.control.ports.node_queries.picture_store import PictureKey
from giornata.domain.errors import Fault, InvalidInput, LeaseLost
from giornata.domain.generation.picture import lease_folder, picture_key
from giornata.domain.jobs.attempt import lease_expires_at_ms
from giornata.protocol.node.pictures import (
    DrawnPicture,
    PictureFlag,
    PictureUpload,
    PictureUploads,
    PictureUploadUrls,
)


def picture_uploads(ctx: Context, attempt_id: str, request: PictureUploads) -> PictureUploadUrls:
    """Return a signed PUT for each of these pictures of the lease. A blocked picture gets
    none. Writes no row.

    The URL signs key, size and checksum. What the lease got is mostly known here: the fence is at the report of the
    result, and a file without a result is collected. Raises LeaseLost, and InvalidInput with every fault.
    """
    faults = [fault for number, each in enumerate(request.pictures) for fault in file_faults(ctx, number, each)]
    if faults:
        raise InvalidInput(faults)
    projects = projects_of(ctx, attempt_id)
    signed = []
    for each in request.pictures:
        project_id = projects.get(PictureKey(each.order_id, each.number))
        if project_id is None or each.sha256 is None or each.size_bytes is None or each.flags & PictureFlag.BLOCKED:
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


def projects_of(ctx: Context, attempt_id: str) -> Mapping[PictureKey, str]:
    """Return the projects of the pictures that the lease got, or still has to draw. Raises LeaseLost."""
    at_ms = ctx.clock.now_ms()
    known = ctx.memory.pictures_of_lease(attempt_id, at_ms=at_ms)
    return read_projects(ctx, attempt_id) if known is None else known


def read_projects(ctx: Context, attempt_id: str) -> Mapping[PictureKey, str]:
    """Return the projects of the pictures that the lease still has to draw. Raises LeaseLost."""
    until_ms = lease_expires_at_ms(now_ms=ctx.clock.now_ms(), lease_s=ctx.policy.lease_s)
    with ctx.store.read() as tx:
        rows = tx.picture_leases.of_live_lease(attempt_id)
    if rows is None:
        raise LeaseLost(f"attempt {attempt_id} has ended, or never was: drop its pictures")
    projects = {row.key: row.project_id for row in rows}
    ctx.memory.remember_lease(attempt_id, projects, until_ms=until_ms)
    return projects


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
