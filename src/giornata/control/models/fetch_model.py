"""Bring a model file from outside into the server's own storage: once, verified, bounded."""

from collections.abc import Iterator

from giornata.control.access.keep_secrets import secret_value
from giornata.control.context import Context
from giornata.control.models.stored_header import StoredModel, lacks_header, stored_facts
from giornata.control.ports.model_registry import RemoteModel, RemoteReference
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import BlobRecord
from giornata.control.quotas.use import require_stored_room
from giornata.domain.errors import Fault, InvalidInput, OverQuota
from giornata.domain.generation.model_header import name_faults
from giornata.domain.generation.model_kinds import ModelFamily, ModelKind
from giornata.protocol.model_references import CivitaiVersion
from giornata.protocol.training.model_names import HubFile

USUAL_SECRETS = {CivitaiVersion: "CIVITAI_TOKEN", HubFile: "HF_TOKEN"}
"""Secrets that are used for a source when the project has them, and no other one is named."""


def fetch_model(
    ctx: Context,
    project_id: str,
    reference: RemoteReference,
    *,
    where: str,
    token_secret: str | None = None,
    sha256: str | None = None,
    kind: ModelKind | None = None,
    family: ModelFamily | None = None,
) -> StoredModel:
    """Make the file a blob of the project, and say what it is. `sha256`, `kind` and `family` are what is expected.

    Nothing is kept of a file that is refused. Raises InvalidInput, and Unavailable when the source fails, when others
    fetch the same file just now, or when too many files are being fetched.
    """
    token = _token(ctx, project_id, reference, token_secret, where=where)
    with ctx.memory.fetches.one((project_id, str(reference))):
        remote = ctx.model_sources.find(reference, token=token, where=where)
        faults = _faults(ctx, remote, sha256, where=where)
        if faults:
            raise InvalidInput(faults)
        expected = sha256 or remote.sha256
        blob = None if expected is None else _known(ctx, project_id, expected)
        blob = blob or _fetched(ctx, project_id, remote, expected, token=token, where=where)
        facts = stored_facts(ctx, blob.key, blob.size_bytes, where=where, kind=kind, family=family or remote.family)
    return StoredModel(sha256=blob.sha256, size_bytes=blob.size_bytes, facts=facts)


def _token(ctx: Context, project_id: str, reference: RemoteReference, named: str | None, *, where: str) -> str | None:
    name = named or USUAL_SECRETS.get(type(reference))
    if name is None:
        return None
    with ctx.store.read() as tx:
        if named is None and not _has_secret(tx, project_id, name):
            return None
        return secret_value(tx, ctx, project_id, name, where="token_secret" if named else where)


def _has_secret(tx: Transaction, project_id: str, name: str) -> bool:
    return tx.secrets.get(project_id, name) is not None


def _faults(ctx: Context, remote: RemoteModel, sha256: str | None, *, where: str) -> list[Fault]:
    faults = name_faults(remote.name, where=where)
    most = ctx.policy.max_upload_bytes
    if remote.size_bytes is not None and remote.size_bytes > most:
        faults.append(Fault(where=where, message=f"has {remote.size_bytes} bytes; at most {most} are taken"))
    if sha256 is not None and remote.sha256 is not None and sha256 != remote.sha256:
        message = f"has the sha256 {remote.sha256} at its source, not {sha256}"
        faults.append(Fault(where=where, message=message, hint="give the right hash, or leave it out"))
    return faults


def _known(ctx: Context, project_id: str, sha256: str) -> BlobRecord | None:
    """Return the project's blob of these bytes, kept from the collector for another while."""
    with ctx.store.begin() as tx:
        tx.uploads.touch_blobs(project_id, [sha256], at_ms=ctx.clock.now_ms())
        return tx.uploads.blobs(project_id, [sha256]).get(sha256)


def _fetched(
    ctx: Context, project_id: str, remote: RemoteModel, expected: str | None, *, token: str | None, where: str
) -> BlobRecord:
    key = f"{project_id}/models/{ctx.names.new('up')}"
    with ctx.store.read() as tx:
        require_stored_room(tx, ctx, project_id, remote.size_bytes or 1, where=where, hold=False)
    most = min(ctx.policy.max_upload_bytes, remote.size_bytes or ctx.policy.max_upload_bytes)
    with ctx.model_sources.open(remote, token=token, where=where) as chunks:
        stored = ctx.blobs.write(key, _checked(chunks, most_bytes=most, where=where))
    wrong = []
    if expected is not None and stored.sha256 != expected:
        message = f"hashes to {stored.sha256}, not {expected}: its source has other bytes now"
        wrong.append(Fault(where=where, message=message, hint="name the version that you mean, or its new sha256"))
    if remote.size_bytes is not None and stored.size_bytes != remote.size_bytes:
        message = f"has {stored.size_bytes} bytes where its source said {remote.size_bytes}"
        wrong.append(Fault(where=where, message=message, hint="try again later"))
    if wrong:
        ctx.blobs.delete(key)
        raise InvalidInput(wrong)
    blob = BlobRecord(sha256=stored.sha256, size_bytes=stored.size_bytes, key=key, inspection=None)
    try:
        with ctx.store.begin() as tx:
            # Once more, and exactly: its size may not have been known, and somebody else may have taken the room.
            require_stored_room(tx, ctx, project_id, blob.size_bytes, where=where, hold=True)
            stands_at = tx.uploads.add_blob(project_id, blob, at_ms=ctx.clock.now_ms())
    except OverQuota:
        ctx.blobs.delete(key)
        raise
    if stands_at != key:
        ctx.blobs.delete(key)  # the project had the same bytes
    return BlobRecord(sha256=blob.sha256, size_bytes=blob.size_bytes, key=stands_at, inspection=None)


def _checked(chunks: Iterator[bytes], *, most_bytes: int, where: str) -> Iterator[bytes]:
    """Pass the bytes on. Raises InvalidInput at the first that show another format, or that are too many."""
    beginning: bytes | None = b""
    count = 0
    for chunk in chunks:
        count += len(chunk)
        if count > most_bytes:
            raise InvalidInput([Fault(where=where, message=f"sends more than {most_bytes} bytes")])
        if beginning is not None:
            beginning += chunk
            if not lacks_header(beginning, where=where):
                beginning = None
        yield chunk
