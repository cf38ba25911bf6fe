"""What one job made and the project's later jobs may use, such as encoded pictures. The first commit wins."""

import re

from giornata.control.attempt_uploads import live_project
from giornata.control.context import Context
from giornata.control.look_at_bytes import missing, note_look
from giornata.control.ports.records import BlobRecord
from giornata.control.signed_urls import download
from giornata.control.verify_upload import verify_upload
from giornata.domain.errors import BlobMissing, Fault, InvalidInput
from giornata.protocol.work import CacheReply, CommitCache, Committed

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)


def get_cache(ctx: Context, attempt_id: str, key: str) -> CacheReply:
    """The file under this key, if somebody has made it and storage has it. Raises LeaseLost, InvalidInput."""
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
