"""Create, list and revoke API keys."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from giornata.control.access.permissions import require_admin
from giornata.control.caller import Caller
from giornata.control.context import Context, Foundations
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.ports.records import KeyRecord
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.errors import Conflict, Fault, InvalidInput, NotFound
from giornata.domain.money import format_usd
from giornata.protocol.admin import ROOT_PROJECT, CreatedKey, CreateKey, Key, KeyPage, Scope

PREFIX_LENGTH = 8


def create_key(ctx: Context, caller: Caller, request: CreateKey) -> CreatedKey:
    """Make a key for the caller's project, or for another one if the caller governs the installation.

    Raises Forbidden for a caller that is no admin, NotFound for a project that the caller cannot see, and
    InvalidInput for what only a node's key, or only the operator's admin, may have.
    """
    require_admin(caller)
    project_id = request.project_id or caller.project_id
    if project_id != caller.project_id and not caller.is_root_admin:
        raise NotFound(f"there is no project {project_id}")
    if faults := [*_node_faults(ctx, caller, request)]:
        raise InvalidInput(faults)
    secret, key = draw_key(ctx, project_id=project_id, scope=request.scope, name=request.name)
    key = replace(key, fleet=request.fleet, max_price_micro_usd_per_hour=request.max_price_micro_usd_per_hour)
    with ctx.store.begin() as tx:
        if tx.projects.get(project_id) is None:
            raise NotFound(f"there is no project {project_id}")
        tx.keys.add(key)
    return CreatedKey(**key_reply(key).model_dump(), secret=secret)


def _node_faults(ctx: Context, caller: Caller, request: CreateKey) -> Iterator[Fault]:
    price, most = request.max_price_micro_usd_per_hour, ctx.policy.max_node_price_micro_usd_per_hour
    if request.scope is not Scope.NODE:
        given = {"fleet": request.fleet, "max_price_micro_usd_per_hour": price}
        hint = "leave it out, or make a key of scope node"
        yield from (
            Fault(where=name, message=f"a key of scope {request.scope} is no node's", hint=hint)
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


def draw_key(ctx: Foundations, *, project_id: str, scope: Scope, name: str) -> tuple[str, KeyRecord]:
    """Draw a fresh secret `gk_<prefix>_<random>`; return it with the row to store, which holds its sha256 only."""
    prefix = hashlib.sha256(ctx.names.secret().encode()).hexdigest()[:PREFIX_LENGTH]
    secret = f"gk_{prefix}_{ctx.names.secret()}"
    return secret, key_of(ctx, secret, project_id=project_id, scope=scope, name=name)


def key_of(ctx: Foundations, secret: str, *, project_id: str, scope: Scope, name: str) -> KeyRecord:
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
        scope=Scope(key.scope),
        project_id=key.project_id,
        created_at=instant(key.created_at_ms),
        revoked_at=instant(key.revoked_at_ms),
        last_used_at=instant(key.last_used_at_ms),
        fleet=key.fleet,
        max_price_micro_usd_per_hour=key.max_price_micro_usd_per_hour,
    )


def list_keys(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> KeyPage:
    """Return keys of the caller's project, of all projects for an admin of the installation; newest first, no
    secrets.
    """
    require_admin(caller)
    check_limit(limit)
    project_id = None if caller.is_root_admin else caller.project_id
    with ctx.store.read() as tx:
        rows = tx.keys.page(project_id=project_id, before=decode_cursor(cursor), limit=limit + 1)
    page, following = cut(rows, limit, lambda key: (key.created_at_ms, key.id))
    return KeyPage(items=tuple(map(key_reply, page)), next=following)


def revoke_key(ctx: Context, caller: Caller, key_id: str) -> Key:
    """Revoke a key for ever; repeating it changes nothing.

    Raises Forbidden for a caller that is no admin, NotFound for a key that the caller cannot see, and Conflict for
    the installation's last admin key: after it nobody could make another.
    """
    require_admin(caller)
    now_ms = ctx.clock.now_ms()
    project_id = None if caller.is_root_admin else caller.project_id
    with ctx.store.begin() as tx:
        key = tx.keys.get(key_id, project_id=project_id) if is_id(key_id) else None
        if key is None:
            raise NotFound(f"there is no key {key_id}")
        if key.revoked_at_ms is not None:
            return key_reply(key)
        governs = key.project_id == ROOT_PROJECT and key.scope == Scope.ADMIN
        if governs and tx.keys.lock_admins(ROOT_PROJECT) == [key_id]:
            raise Conflict("this is the last admin key of the installation; make another one first")
        tx.keys.revoke(key_id, at_ms=now_ms)
    ctx.memory.forget_callers()
    return key_reply(replace(key, revoked_at_ms=now_ms))
