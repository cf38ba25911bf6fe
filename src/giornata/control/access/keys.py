"""Create, list, rotate and revoke API keys."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from giornata.control.access.permissions import read_scopes, require_admin, stored_scopes, verbs_of
from giornata.control.audit_log.record import NONE, record_call
from giornata.control.caller import Caller
from giornata.control.context import Context, Foundations
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import KeyRecord
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.billing.money import format_usd
from giornata.domain.errors import Conflict, Fault, Forbidden, InvalidInput, NotFound
from giornata.protocol.project.admin import ROOT_PROJECT, CreatedKey, CreateKey, Key, KeyPage, RotateKey, Scope

PREFIX_LENGTH = 8


def create_key(ctx: Context, caller: Caller, request: CreateKey) -> CreatedKey:
    """Make a key for the caller's project, or for another one if the caller governs the installation.

    A person who signed in makes keys of an own reach, by a session or by the key of a login; other keys are made by
    those who govern the project. Raises Forbidden for a key that would reach further than its maker, NotFound for a
    project that the caller cannot see, and InvalidInput for what only a node's key, or only the operator's admin, may
    have.
    """
    if not caller.acts_as_person:
        require_admin(caller)
    project_id = request.project_id or caller.project_id
    if project_id != caller.project_id and not caller.is_root_admin:
        raise NotFound(f"there is no project {project_id}")
    verbs = verbs_of(request.scopes or (request.scope,))
    if faults := [*_login_faults(caller, request, verbs), *_node_faults(ctx, caller, request, verbs)]:
        raise InvalidInput(faults)
    _require_reach(caller, verbs)
    secret, key = draw_key(ctx, project_id=project_id, scope=stored_scopes(verbs), name=request.name)
    key = replace(
        key,
        fleet=request.fleet,
        max_price_micro_usd_per_hour=request.max_price_micro_usd_per_hour,
        created_by=caller.maker,
        user_id=caller.user_id,
        expires_at_ms=_expiry_ms(caller, request, at_ms=key.created_at_ms),
        login=request.login,
    )
    with ctx.store.begin() as tx:
        if tx.projects.get(project_id) is None:
            raise NotFound(f"there is no project {project_id}")
        tx.keys.add(key)
        _record(
            tx,
            caller,
            AuditVerb.KEY_CREATE,
            key,
            at_ms=key.created_at_ms,
            changes={"expires_at_ms": key.expires_at_ms},
        )
    return CreatedKey(**key_reply(key).model_dump(), secret=secret)


def _expiry_ms(caller: Caller, request: CreateKey, *, at_ms: int) -> int | None:
    """Return when the key expires: when the request says, and no later than the key that makes it."""
    ends = [] if request.expires_in_s is None else [at_ms + request.expires_in_s * 1000]
    ends += [] if caller.expires_at_ms is None else [caller.expires_at_ms]
    return min(ends, default=None)


def _require_reach(caller: Caller, verbs: frozenset[Scope]) -> None:
    own = caller.scopes | {Scope.NODE} if Scope.ADMIN in caller.scopes else caller.scopes
    if beyond := sorted(verbs - own):
        raise Forbidden(f"the key would reach further than you: you have no scope {', '.join(beyond)}")


def _login_faults(caller: Caller, request: CreateKey, verbs: frozenset[Scope]) -> Iterator[Fault]:
    if not request.login:
        return
    if not caller.is_session:
        hint = "leave it out, or sign in"
        yield Fault(where="login", message="only a person who signed in makes the key of a login", hint=hint)
    if Scope.NODE in verbs:
        yield Fault(where="login", message="a key of scope node cannot be a login", hint="leave it out")


def _node_faults(ctx: Context, caller: Caller, request: CreateKey, verbs: frozenset[Scope]) -> Iterator[Fault]:
    price, most = request.max_price_micro_usd_per_hour, ctx.policy.max_node_price_micro_usd_per_hour
    if Scope.NODE in verbs and len(verbs) > 1:
        hint = "make two keys: the one of a node lies on the node's disk"
        yield Fault(where="scopes", message="node cannot be combined with other scopes", hint=hint)
    if Scope.NODE not in verbs:
        given = {"fleet": request.fleet, "max_price_micro_usd_per_hour": price}
        hint = "leave it out, or make a key of scope node"
        yield from (
            Fault(
                where=name,
                message=f"applies only to keys of scope node; this key has {stored_scopes(verbs)}",
                hint=hint,
            )
            for name, value in given.items()
            if value is not None
        )
        return
    if request.fleet is not None and not caller.is_root_admin:
        hint = "leave it out: the key is then for machines of the project's own"
        yield Fault(where="fleet", message="only an admin key of the operator's project names a fleet", hint=hint)
    if price is not None and price > most and not caller.is_root_admin:
        hint = "ask the operator for such a key"
        message = f"{format_usd(price)} an hour is more than the {format_usd(most)} that this installation allows"
        yield Fault(where="max_price_micro_usd_per_hour", message=message, hint=hint)


def draw_key(ctx: Foundations, *, project_id: str, scope: str, name: str) -> tuple[str, KeyRecord]:
    """Draw a fresh secret `gk_<prefix>_<random>`; return it with the row to store, which holds its sha256 only."""
    prefix = hashlib.sha256(ctx.names.secret().encode()).hexdigest()[:PREFIX_LENGTH]
    secret = f"gk_{prefix}_{ctx.names.secret()}"
    return secret, key_of(ctx, secret, project_id=project_id, scope=scope, name=name)


def key_of(ctx: Foundations, secret: str, *, project_id: str, scope: str, name: str) -> KeyRecord:
    """Return the row of a secret `gk_<prefix>_<random>`."""
    return KeyRecord(
        id=ctx.names.new("key"),
        project_id=project_id,
        scope=scope,
        name=name,
        prefix=secret.removeprefix("gk_")[:PREFIX_LENGTH],
        secret_sha256=secret_hash(secret),
        created_at_ms=ctx.clock.now_ms(),
        revoked_at_ms=None,
        last_used_at_ms=None,
    )


def secret_hash(secret: str) -> str:
    """Return the stored hash of a secret. A secret has 256 random bits, so a plain hash cannot be inverted."""
    return hashlib.sha256(secret.encode()).hexdigest()


def key_reply(key: KeyRecord) -> Key:
    """Return a key as its project's admins see it."""
    return Key(
        id=key.id,
        prefix=key.prefix,
        name=key.name,
        scope=next((scope for scope in (Scope.ADMIN, Scope.NODE) if key.scope == scope), Scope.MEMBER),
        scopes=tuple(sorted(read_scopes(key.scope))),
        project_id=key.project_id,
        created_by=key.created_by,
        expires_at=instant(key.expires_at_ms),
        previous_secret_until=instant(key.previous_until_ms),
        login=key.login,
        created_at=instant(key.created_at_ms),
        revoked_at=instant(key.revoked_at_ms),
        last_used_at=instant(key.last_used_at_ms),
        fleet=key.fleet,
        max_price_micro_usd_per_hour=key.max_price_micro_usd_per_hour,
    )


def list_keys(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> KeyPage:
    """Return keys of the caller's project, of all projects for an admin of the installation; newest first, no
    secrets. A person who does not govern the project sees only keys that this person made.
    """
    user_id = _whose_keys(caller)
    check_limit(limit)
    project_id = None if caller.is_root_admin else caller.project_id
    with ctx.store.read() as tx:
        rows = tx.keys.page(project_id=project_id, user_id=user_id, before=decode_cursor(cursor), limit=limit + 1)
    page, following = cut(rows, limit, lambda key: (key.created_at_ms, key.id))
    return KeyPage(items=tuple(map(key_reply, page)), next=following)


def revoke_key(ctx: Context, caller: Caller, key_id: str) -> Key:
    """Revoke a key for ever; repeating it changes nothing. Every key may end itself.

    Raises Forbidden for a caller that does not govern the project, NotFound for a key that the caller cannot see, and
    Conflict for the installation's last admin key: without it no other could be made.
    """
    ends_itself = not caller.is_session and caller.workload is None and key_id == caller.key_id
    user_id, now_ms = None if ends_itself else _whose_keys(caller), ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        key = _seen_key(tx, caller, key_id, user_id)
        if key.revoked_at_ms is not None:
            return key_reply(key)
        governs = key.project_id == ROOT_PROJECT and key.scope == Scope.ADMIN
        if governs and tx.keys.lock_admins(ROOT_PROJECT) == [key_id]:
            raise Conflict("this is the last admin key of the installation; make another one first")
        tx.keys.revoke(key_id, at_ms=now_ms)
        _record(tx, caller, AuditVerb.KEY_REVOKE, key, at_ms=now_ms)
    ctx.memory.forget_callers()
    return key_reply(replace(key, revoked_at_ms=now_ms))


def rotate_key(ctx: Context, caller: Caller, key_id: str, request: RotateKey) -> CreatedKey:
    """Give a key a new secret. The one of before stays good for `overlap_s`; one from before that ends now.

    Raises Forbidden for another person's key, NotFound for a key that the caller cannot see, and Conflict for a key
    that was revoked or has expired.
    """
    user_id, now_ms = _whose_keys(caller), ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        old = _seen_key(tx, caller, key_id, user_id)
        if old.user_id is not None and old.user_id != caller.user_id:
            raise Forbidden("another person made this key; revoke it, and make another one")
        if caller.is_login:
            _require_no_further(caller, old)
        of_operator = old.fleet is not None or old.max_price_micro_usd_per_hour is not None
        if of_operator and not caller.is_root_admin:
            raise Forbidden("only an admin key of the operator's project rotates a node's key with limits")
        secret, drawn = draw_key(ctx, project_id=old.project_id, scope=old.scope, name=old.name)
        key = replace(
            old,
            prefix=drawn.prefix,
            secret_sha256=drawn.secret_sha256,
            previous_sha256=old.secret_sha256,
            previous_until_ms=now_ms + request.overlap_s * 1000,
        )
        if not is_live(old, now_ms) or not tx.keys.rotate(key):
            raise Conflict("this key was revoked or has expired; make another one")
        _record(
            tx, caller, AuditVerb.KEY_ROTATE, key, at_ms=now_ms, changes={"previous_until_ms": key.previous_until_ms}
        )
    ctx.memory.forget_callers()
    return CreatedKey(**key_reply(key).model_dump(), secret=secret)


def _require_no_further(caller: Caller, key: KeyRecord) -> None:
    """Raises Forbidden for a key that the key of a login could not have made: its new secret would reach further."""
    _require_reach(caller, read_scopes(key.scope))
    if caller.expires_at_ms is not None and (key.expires_at_ms or caller.expires_at_ms + 1) > caller.expires_at_ms:
        raise Forbidden("this key ends later than your login; sign in to the server, or make another key")


def _record(
    tx: Transaction, caller: Caller, verb: AuditVerb, key: KeyRecord, *, at_ms: int, changes: Mapping[str, Any] = NONE
) -> None:
    scopes = sorted(read_scopes(key.scope))
    record_call(
        tx, caller, verb, key.id, at_ms=at_ms, project_id=key.project_id, changes={"scopes": scopes, **changes}
    )


def is_live(key: KeyRecord, at_ms: int) -> bool:
    """Return whether the key was neither revoked nor has expired."""
    return key.revoked_at_ms is None and (key.expires_at_ms is None or at_ms < key.expires_at_ms)


def _whose_keys(caller: Caller) -> str | None:
    """Return the person whose keys alone the caller sees; None: the keys of all. Raises Forbidden."""
    if Scope.ADMIN not in caller.scopes and caller.acts_as_person and caller.scopes:
        return caller.user_id
    require_admin(caller)
    return None


def _seen_key(tx: Transaction, caller: Caller, key_id: str, user_id: str | None) -> KeyRecord:
    project_id = None if caller.is_root_admin else caller.project_id
    key = tx.keys.get(key_id, project_id=project_id) if is_id(key_id) else None
    if key is None or (user_id is not None and key.user_id != user_id):
        raise NotFound(f"there is no key {key_id}")
    return key
