"""Give users and attempts places for bytes that they send: uploads, and the caches of attempts.

The keys of an attempt's objects hold the attempt's id, so that no attempt can touch the objects of another.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import BlobRecord, UploadRecord
from giornata.control.quotas.use import require_stored_room
from giornata.control.storage.look_at_bytes import missing, note_look
from giornata.control.storage.signed_urls import download, ticket
from giornata.control.storage.verify_upload import verify_upload
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.billing.quotas import refusal_of
from giornata.domain.errors import BlobMissing, Fault, InvalidInput, LeaseLost, NotFound, collecting
from giornata.domain.files.transfers import plan_parts
from giornata.protocol.node.work import CacheReply, CommitCache, Committed
from giornata.protocol.project.admin import Scope
from giornata.protocol.uploads import (
    Blob,
    CompleteUpload,
    FileToUpload,
    RenewParts,
    UploadReply,
    UploadRequest,
    UploadTicket,
)

MOST_PARTS_PER_REQUEST = 4000
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploader:
    """The sender of an upload. `project_id` finds the project inside a transaction, and refuses a sender that may not
    (any more) send. `created_by` is the person or the key; None for an attempt.
    """

    project_id: Callable[[Transaction], str]
    attempt_id: str | None
    created_by: str | None = None


def open_uploads(ctx: Context, uploader: Uploader, request: UploadRequest) -> UploadReply:
    """Return a ticket for each distinct sha256, in the order asked. All or nothing.

    Bytes that the project has are not asked for again, and are kept for another while for whoever is about to
    refer to them. Storage is asked whether it has them still. What an attempt sends is never refused for the
    project's stored bytes: its job runs. Raises InvalidInput with every fault, and OverQuota.
    """
    files = {file.sha256: file for file in request.files}
    faults = list(_faults(ctx, request))
    with ctx.store.begin() as tx:
        project_id = uploader.project_id(tx)
        there = tx.uploads.blobs(project_id, list(files))
        faults += _contradictions(files, there)
        new_bytes = sum(file.size_bytes for sha256, file in files.items() if sha256 not in there)
        if uploader.attempt_id is None:
            with collecting(faults):
                require_stored_room(tx, ctx, project_id, new_bytes, where="files", hold=False)
        if faults:
            raise refusal_of(faults)
        tx.uploads.touch_blobs(project_id, sorted(there), at_ms=ctx.clock.now_ms())
    lost = missing(ctx, there.values())
    there = {sha256: blob for sha256, blob in there.items() if sha256 not in {look.sha256 for look in lost}}
    uploads = [_begin(ctx, uploader, project_id, file) for sha256, file in files.items() if sha256 not in there]
    with ctx.store.begin() as tx:
        uploader.project_id(tx)
        for look in sorted(lost, key=lambda look: look.sha256):
            note_look(tx, project_id, look, at_ms=ctx.clock.now_ms())
        if uploader.attempt_id is None:
            # Once more, and exactly: somebody else may have taken the room meanwhile.
            size_bytes = sum(upload.size_bytes for upload in uploads)
            require_stored_room(tx, ctx, project_id, size_bytes, where="files", hold=True)
        tx.uploads.add(uploads)
    tickets = {upload.sha256: ticket(ctx, upload) for upload in uploads}
    tickets |= {sha256: UploadTicket(sha256=sha256, exists=True) for sha256 in there}
    return UploadReply(items=tuple(tickets[sha256] for sha256 in files))


def renew(ctx: Context, uploader: Uploader, upload_id: str, request: RenewParts) -> UploadTicket:
    """Return fresh URLs for the uploader's upload. Raises NotFound, and InvalidInput for parts that it has not."""
    with ctx.store.begin() as tx:
        project_id = uploader.project_id(tx)
        upload = tx.uploads.get(upload_id, project_id=project_id) if is_id(upload_id) else None
    if upload is None or upload.attempt_id != uploader.attempt_id:
        raise NotFound(f"there is no upload {upload_id}")
    if upload.completed_at_ms is not None:
        return UploadTicket(sha256=upload.sha256, exists=True, upload_id=upload.id)
    parts = 0 if upload.multipart_id is None else len(plan_parts(upload.size_bytes) or [])
    wrong = sorted({number for number in request.numbers if not 1 <= number <= parts})
    if wrong:
        has = f"has parts 1 to {parts}" if parts else "is sent in one piece"
        raise InvalidInput([Fault(where="numbers", message=f"there is no part {wrong[0]}: this upload {has}")])
    return ticket(ctx, upload, request.numbers)


def _faults(ctx: Context, request: UploadRequest) -> Iterable[Fault]:
    limit = ctx.policy.max_upload_bytes
    sizes: dict[str, int] = {}
    for number, file in enumerate(request.files):
        where = file.name or f"files.{number}"
        if file.size_bytes > limit:
            yield Fault(where=where, message=f"has {file.size_bytes} bytes; at most {limit} are taken")
        if sizes.setdefault(file.sha256, file.size_bytes) != file.size_bytes:
            yield Fault(where=where, message="has the sha256 of another file of this request, but not its size")
    parts = sum(len(plan_parts(size) or []) for size in sizes.values() if size <= limit)
    if parts > MOST_PARTS_PER_REQUEST:
        message = f"these files make {parts} parts; at most {MOST_PARTS_PER_REQUEST} are signed at once"
        yield Fault(where="files", message=message, hint="ask for fewer files at once")


def _contradictions(files: dict[str, FileToUpload], there: dict[str, BlobRecord]) -> Iterable[Fault]:
    for sha256, blob in there.items():
        file = files[sha256]
        if blob.size_bytes != file.size_bytes:
            message = f"has {file.size_bytes} bytes, but the bytes of this sha256 are {blob.size_bytes}"
            yield Fault(where=file.name or sha256, message=message, hint="hash and measure the file again")


def _begin(ctx: Context, uploader: Uploader, project_id: str, file: FileToUpload) -> UploadRecord:
    now_ms = ctx.clock.now_ms()
    upload_id = ctx.names.new("up")
    # Each upload has a key of its own, so that deleting one never harms another of the same bytes.
    owner = uploader.attempt_id or f"{instant(now_ms):%Y%m}"
    key = f"{project_id}/{owner}/{upload_id}/{file.sha256}"
    return UploadRecord(
        id=upload_id,
        project_id=project_id,
        attempt_id=uploader.attempt_id,
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        key=key,
        multipart_id=ctx.blobs.begin_multipart(key) if plan_parts(file.size_bytes) else None,
        created_at_ms=now_ms,
        created_by=uploader.created_by,
    )


def request_uploads(ctx: Context, caller: Caller, request: UploadRequest) -> UploadReply:
    """Return tickets for the files that the project does not have yet; see `open_uploads`.

    Raises Forbidden, InvalidInput.
    """
    require_scope(caller, Scope.DATASETS)
    return open_uploads(ctx, user_uploader(caller), request)


def user_uploader(caller: Caller) -> Uploader:
    """Return the uploader of a user: such uploads belong to no attempt."""
    return Uploader(project_id=lambda _tx: caller.project_id, attempt_id=None, created_by=caller.maker)


def renew_upload(ctx: Context, caller: Caller, upload_id: str, request: RenewParts) -> UploadTicket:
    """Return fresh URLs for parts of an open upload. Raises Forbidden, NotFound, InvalidInput."""
    require_scope(caller, Scope.DATASETS)
    return renew(ctx, user_uploader(caller), upload_id, request)


def complete_upload(ctx: Context, caller: Caller, upload_id: str, request: CompleteUpload) -> Blob:
    """Verify the bytes and make them a blob of the project. May be repeated.

    Raises Forbidden, NotFound, BlobMissing when storage has no bytes, and BlobMismatch when it has others.
    """
    require_scope(caller, Scope.DATASETS)
    with ctx.store.read() as tx:
        upload = tx.uploads.get(upload_id, project_id=caller.project_id) if is_id(upload_id) else None
    if upload is None or upload.attempt_id is not None:
        raise NotFound(f"there is no upload {upload_id}")
    verify_upload(ctx, caller.project_id, upload.sha256, upload.size_bytes, upload_id, request.etags)
    return Blob(sha256=upload.sha256, size_bytes=upload.size_bytes)


def request_attempt_uploads(ctx: Context, attempt_id: str, request: UploadRequest) -> UploadReply:
    """Return tickets for an attempt that has not ended. Raises LeaseLost, InvalidInput."""
    return open_uploads(ctx, _attempt_uploader(attempt_id), request)


def renew_attempt_upload(ctx: Context, attempt_id: str, upload_id: str, request: RenewParts) -> UploadTicket:
    """Return fresh URLs for an upload of this very attempt. Raises LeaseLost, NotFound, InvalidInput."""
    return renew(ctx, _attempt_uploader(attempt_id), upload_id, request)


def live_project(tx: Transaction, attempt_id: str) -> str:
    """Return the project that the attempt works for. Raises LeaseLost when the attempt has ended or never was."""
    project_id = tx.uploads.live_attempt_project(attempt_id)
    if project_id is None:
        raise LeaseLost(f"attempt {attempt_id} has ended")
    return project_id


def _attempt_uploader(attempt_id: str) -> Uploader:
    return Uploader(project_id=lambda tx: live_project(tx, attempt_id), attempt_id=attempt_id)


def get_cache(ctx: Context, attempt_id: str, key: str) -> CacheReply:
    """Return the file under this key, if somebody has made it and storage has it. Raises LeaseLost, InvalidInput."""
    _check(key)
    with ctx.store.begin() as tx:
        project_id = live_project(tx, attempt_id)
        found = tx.uploads.cache(project_id, key)
        if found is None:
            return CacheReply(download=None)
        tx.uploads.cache_used(project_id, key, at_ms=ctx.clock.now_ms())
    blob = BlobRecord(sha256=found.sha256, size_bytes=found.size_bytes, key=found.key, inspection=None)
    for look in missing(ctx, [blob]):
        with ctx.store.begin() as tx:
            note_look(tx, project_id, look, at_ms=ctx.clock.now_ms())
        return CacheReply(download=None)
    return CacheReply(download=download(ctx, sha256=found.sha256, size_bytes=found.size_bytes, key=found.key))


def commit_cache(ctx: Context, attempt_id: str, key: str, commit: CommitCache) -> Committed:
    """Put verified bytes under the key, unless some stand there: those are named in the reply, as superfluous.

    Raises LeaseLost, InvalidInput, BlobMissing, BlobMismatch.
    """
    _check(key)
    with ctx.store.begin() as tx:
        project_id = live_project(tx, attempt_id)
    verify_upload(ctx, project_id, commit.sha256, commit.size_bytes, commit.upload_id, commit.etags)
    with ctx.store.begin() as tx:
        live_project(tx, attempt_id)
        new = tx.uploads.add_cache(project_id, key, commit.sha256, commit.size_bytes, at_ms=ctx.clock.now_ms())
        stands = tx.uploads.cache(project_id, key)
    if stands is None:
        raise BlobMissing(f"nothing stands under {key}: commit it again")
    return Committed(sha256=stands.sha256, size_bytes=stands.size_bytes, superfluous=not new)


def _check(key: str) -> None:
    if KEY.fullmatch(key) is None:
        hint = "1 to 255 of A-Z a-z 0-9 . _ : -, beginning with a letter or a digit"
        raise InvalidInput([Fault(where="key", message=f"{key[:80]!r} is not a cache key", hint=hint)])
