"""The first start of an installation: its signing key, and the admin key that the settings name."""

import hmac
import json
import logging

from giornata.control.access.keys import draw_key, key_of, secret_hash
from giornata.control.audit_log.record import SYSTEM, record
from giornata.control.context import Foundations
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import ProjectRecord
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.protocol.project.admin import ROOT_PROJECT, Scope

log = logging.getLogger("giornata.rights")
FIRST_KEY_NAME = "first admin key"
GIVEN_KEY_NAME = "admin key of the settings"
# Sealed together with the key: no sealed secret of a project can be put into its place.
PURPOSE = "signing key"


def install(ctx: Foundations, *, admin_key: str | None = None) -> str | None:
    """Write the installation's signing key, the operator's project and an admin key, once.

    The admin key is `admin_key`, or is drawn. Returns the secret of a key that was drawn, which is stored nowhere;
    None when the key was given, and when the installation has its rows already. Of servers that start together one
    gets the secret.
    """
    now_ms = ctx.clock.now_ms()
    drawn, key = draw_key(ctx, project_id=ROOT_PROJECT, scope=Scope.ADMIN, name=FIRST_KEY_NAME)
    if admin_key is not None:
        key = key_of(ctx, admin_key, project_id=ROOT_PROJECT, scope=Scope.ADMIN, name=GIVEN_KEY_NAME)
    clear, sealed = _stored(ctx, ctx.names.secret())
    with ctx.store.begin() as tx:
        if not tx.projects.install(signing_key=clear, sealed_signing_key=sealed, at_ms=now_ms):
            return None
        tx.projects.add(ProjectRecord(id=ROOT_PROJECT, name=ROOT_PROJECT, created_at_ms=now_ms))
        tx.keys.add(key)
        _record(tx, AuditVerb.INSTALLATION_INSTALL, key.id, at_ms=now_ms)
    return drawn if admin_key is None else None


def _record(tx: Transaction, verb: AuditVerb, target: str, *, at_ms: int) -> None:
    record(tx, SYSTEM, verb, target, at_ms=at_ms, project_id=ROOT_PROJECT)


def seal_signing_key(ctx: Foundations) -> bool:
    """Seal the key that an earlier version kept in the clear; return True when there was one. Raises Unavailable."""
    if not ctx.sealer.seals:
        return False
    with ctx.store.begin() as tx:
        kept = tx.projects.signing_key()
        if kept is None or not kept.clear:
            return False
        clear, sealed = _stored(ctx, kept.clear)
        tx.projects.replace_signing_key(signing_key=clear, sealed_signing_key=sealed)
    try:
        ctx.store.erase_replaced()
    except Unavailable as error:
        log.warning("the signing key is sealed, but the database may still hold its old bytes: %s", error)
    log.warning("the signing key is sealed now; backups that are older hold it in the clear")
    return True


def renew_signing_key(ctx: Foundations) -> None:
    """Sign with another key from now on. Every lease and every signed URL from before is refused."""
    clear, sealed = _stored(ctx, ctx.names.secret())
    with ctx.store.begin() as tx:
        tx.projects.replace_signing_key(signing_key=clear, sealed_signing_key=sealed)
        _record(tx, AuditVerb.INSTALLATION_RENEW_SIGNING_KEY, "", at_ms=ctx.clock.now_ms())
    ctx.store.erase_replaced()
    ctx.memory.signing_key = None


def signing_key(ctx: Foundations) -> bytes:
    """Return the key that signs URLs and attempt tokens; a process reads it once. Raises Unavailable."""
    if ctx.memory.signing_key is None:
        with ctx.store.read() as tx:
            return signing_key_in(tx, ctx)
    return ctx.memory.signing_key


def signing_key_in(tx: Transaction, ctx: Foundations) -> bytes:
    """Return the signing key, as `signing_key` does, within a transaction that is there already."""
    if ctx.memory.signing_key is None:
        ctx.memory.signing_key = read_signing_key(tx, ctx)
    return ctx.memory.signing_key


def read_signing_key(tx: Transaction, ctx: Foundations) -> bytes:
    """Read the signing key from the database, whatever is remembered. Raises Unavailable before `install`, and
    without the sealing key.
    """
    kept = tx.projects.signing_key()
    if kept is None:
        raise Unavailable("the installation has no signing key yet: `install` has not run on this database")
    return (kept.clear if kept.sealed is None else _unsealed(ctx, kept.sealed)).encode()


def _stored(ctx: Foundations, key: str) -> tuple[str, str | None]:
    """Return the stored forms of the key: in the clear, and sealed."""
    return ("", ctx.sealer.seal(json.dumps([PURPOSE, key]))) if ctx.sealer.seals else (key, None)


def _unsealed(ctx: Foundations, sealed: str) -> str:
    try:
        content = json.loads(ctx.sealer.unseal(sealed))
    except Unavailable:
        content = []
    if len(content) != 2 or content[0] != PURPOSE:
        raise Unavailable(
            "the signing key in the database is sealed with another key than the secrets_key of this server; give "
            "the server the key that sealed it: GIORNATA_SECRETS_KEY, or secrets.key in the data folder. Where that "
            "key is lost, start one server once with --new-signing-key: leases and signed URLs from before are "
            "refused then, and projects have to set their secrets again"
        )
    return str(content[1])


def put_admin_key(ctx: Foundations, secret: str) -> None:
    """Let this key govern the installation, and revoke the key that the settings named before. May be repeated.

    Keys that were made by `install` or by `create_key` stay as they are. A key that was revoked stays revoked, and an
    error is logged. Raises InvalidInput for a key that was made for something else.
    """
    now_ms = ctx.clock.now_ms()
    wanted = key_of(ctx, secret, project_id=ROOT_PROJECT, scope=Scope.ADMIN, name=GIVEN_KEY_NAME)
    with ctx.store.begin() as tx:
        admins = [tx.keys.get(each, project_id=ROOT_PROJECT) for each in tx.keys.lock_admins(ROOT_PROJECT)]
        known = tx.keys.by_secret(secret_hash(secret))
        if known is not None and known.revoked_at_ms is not None:
            log.error("admin_key names the key %s, which was revoked and stays so; give another key", known.id)
            return
        if known is not None and (known.project_id, known.scope) != (ROOT_PROJECT, Scope.ADMIN):
            message = f"is the key {known.id} of scope {known.scope} of the project {known.project_id}"
            hint = "give a key that is used for nothing else"
            raise InvalidInput([Fault(where="admin_key", message=message, hint=hint)])
        if known is None:
            tx.keys.add(wanted)
            _record(tx, AuditVerb.KEY_CREATE, wanted.id, at_ms=now_ms)
        for each in admins:
            if each is None or each.name != GIVEN_KEY_NAME:
                continue
            if not hmac.compare_digest(each.secret_sha256, wanted.secret_sha256):
                tx.keys.revoke(each.id, at_ms=now_ms)
                _record(tx, AuditVerb.KEY_REVOKE, each.id, at_ms=now_ms)
                log.info("the admin key %s was revoked: the settings name another key", each.id)
    ctx.memory.forget_callers()
