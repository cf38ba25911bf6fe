"""Take in pictures of an imported order: bytes by signed PUTs, then rows, stars and tags."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta

from giornata.control.access.permissions import require_admin
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.node_queries.picture_store import PictureKey
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.import_store import PictureToImport
from giornata.control.projects.import_job import IMPORTING, imported_job
from giornata.control.quotas.use import require_stored_room
from giornata.control.storage.signed_urls import signed_url
from giornata.control.text_limits import text_faults
from giornata.control.timestamps import instant
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.picture import PictureState, SafetyPolicy, lease_folder, picture_key
from giornata.domain.generation.search_terms import STAR
from giornata.protocol.node.pictures import PictureFlag
from giornata.protocol.project.project_transfer import (
    ImportedPicture,
    ImportedPictures,
    ImportedPictureUpload,
    ImportPictures,
)


def import_pictures(ctx: Context, caller: Caller, job_id: str, request: ImportPictures) -> ImportedPictures:
    """Write the pictures whose bytes storage has, and return a signed PUT for each of the others.

    The project's policy for unsafe pictures holds: where it blocks them, unsafe and unchecked ones have no bytes
    here. Pictures that are there already stay as they are, and an import that has ended takes none. Raises Forbidden
    unless the caller owns the project, NotFound, Conflict for a job that was not imported, InvalidInput with every
    fault, and OverQuota.
    """
    require_admin(caller)
    with ctx.store.read() as tx:
        given = _wanted(ctx, tx, caller, job_id, request)
        project = tx.projects.get(caller.project_id)
    policy = SafetyPolicy.OFF if project is None else SafetyPolicy(project.safety)
    wanted = [_under(policy, each) for each in given]
    had_bytes = {each.number for each in given if each.sha256 is not None}
    withheld = tuple(each.number for each in wanted if each.sha256 is None and each.number in had_bytes)
    if not wanted:
        return ImportedPictures(job_id=job_id)
    missing = [each for each in wanted if each.sha256 is not None and not _is_stored(ctx, caller, job_id, each)]
    numbers = {each.number for each in missing}
    stored = [each for each in wanted if each.number not in numbers]
    with ctx.store.begin() as tx:
        tx.submission.hold_project(caller.project_id)
        size_bytes = sum(each.size_bytes or 0 for each in wanted)
        require_stored_room(tx, ctx, caller.project_id, size_bytes, where="pictures", hold=False)
        if stored and imported_job(tx, caller, job_id).phase == IMPORTING:
            _write(tx, caller, job_id, stored)
    uploads = tuple(_upload(ctx, caller, job_id, each) for each in missing)
    return ImportedPictures(job_id=job_id, uploads=uploads, withheld=withheld)


def _under(policy: SafetyPolicy, each: ImportedPicture) -> ImportedPicture:
    """Return the picture as it may be in a project with this policy."""
    if policy is SafetyPolicy.OFF or each.sha256 is None:
        return each
    flags = set(each.flags)
    if each.safety is SafetyPolicy.OFF and "unsafe" not in flags:
        flags.add("unchecked")
    if policy is SafetyPolicy.BLOCK and flags & {"unsafe", "unchecked"}:
        flags = (flags - {"unsafe"}) | {"blocked"}
        return each.model_copy(update={"flags": tuple(sorted(flags)), "sha256": None, "size_bytes": None})
    return each.model_copy(update={"flags": tuple(sorted(flags))})


def _wanted(
    ctx: Context, tx: Transaction, caller: Caller, job_id: str, request: ImportPictures
) -> Sequence[ImportedPicture]:
    """Return the pictures that are not imported yet. Raises InvalidInput for those that the order cannot have."""
    job = imported_job(tx, caller, job_id)
    awaited = tx.imported_jobs.awaited_pictures(job_id, [each.number for each in request.pictures])
    faults = [fault for place, each in enumerate(request.pictures) for fault in _faults(ctx, place, each)]
    faults += [
        Fault(where=f"pictures.{place}.number", message=f"{job_id} has no picture {each.number}")
        for place, each in enumerate(request.pictures)
        if each.number not in awaited
    ]
    for name in ("number", "place"):
        times = Counter(getattr(each, name) for each in request.pictures)
        if times.most_common(1)[0][1] > 1:
            faults.append(Fault(where="pictures", message=f"has a {name} twice", hint="send each picture once"))
    if faults:
        raise InvalidInput(faults)
    return [each for each in request.pictures if awaited[each.number]] if job.phase == IMPORTING else []


def _faults(ctx: Context, place: int, each: ImportedPicture) -> Iterable[Fault]:
    where, most_bytes = f"pictures.{place}", ctx.policy.max_picture_bytes
    if (each.sha256 is None) is not (each.size_bytes is None):
        yield Fault(where=f"{where}.size_bytes", message="a picture has both sha256 and size_bytes, or none")
    if each.sha256 is not None and (each.state == "failed" or "blocked" in each.flags):
        yield Fault(where=f"{where}.sha256", message="a failed or blocked picture has no bytes", hint="leave it out")
    if (each.size_bytes or 0) > most_bytes:
        message = f"is {each.size_bytes} bytes; at most {most_bytes} are taken"
        yield Fault(where=f"{where}.size_bytes", message=message)
    yield from text_faults(f"{where}.error", each.error)


def _lease(job_id: str, each: ImportedPicture) -> str:
    """Return what stands for a lease. Each picture has its own, so no two share an object."""
    return f"{job_id}-{each.number}"


def _is_stored(ctx: Context, caller: Caller, job_id: str, each: ImportedPicture) -> bool:
    """Return True when storage has the bytes, and the collector takes them for new for long enough."""
    folder = lease_folder(caller.project_id, _lease(job_id, each))
    since = instant(ctx.clock.now_ms()) - timedelta(seconds=ctx.policy.garbage_after_s / 2)
    return any(
        found.key == f"{folder}{each.sha256}" and found.size_bytes == each.size_bytes and found.modified_at > since
        for found in ctx.blobs.list(folder)
    )


def _upload(ctx: Context, caller: Caller, job_id: str, each: ImportedPicture) -> ImportedPictureUpload:
    put = ctx.blobs.sign_put(
        picture_key(caller.project_id, _lease(job_id, each), each.sha256 or ""),
        size_bytes=each.size_bytes or 0,
        sha256=each.sha256 or "",
        expires_in_s=round(ctx.policy.upload_url_s),
    )
    return ImportedPictureUpload(number=each.number, request=signed_url(put))


def _write(tx: Transaction, caller: Caller, job_id: str, some: Sequence[ImportedPicture]) -> None:
    rows = [
        PictureToImport(
            number=each.number,
            state=PictureState(each.state),
            lease=None if each.sha256 is None else _lease(job_id, each),
            sha256=each.sha256,
            size_bytes=each.size_bytes,
            flags=sum(PictureFlag[name.upper().replace("-", "_")] for name in set(each.flags)),
            place=each.place,
            error=each.error,
        )
        for each in some
    ]
    new = tx.imported_jobs.end_pictures(job_id, rows)
    for each in some:
        tags = [*each.tags, *([STAR] if each.starred else [])]
        if each.number in new and tags:
            key, of = PictureKey(job_id, each.number), caller.project_id
            tx.picture_gallery.add_tags([key], tags, project_id=of, created_by=caller.maker)
