"""New keys."""

import hashlib

from giornata.control.context import Caller, Context, Foundations
from giornata.control.instants import instant
from giornata.control.permissions import require_admin
from giornata.control.ports.records import KeyRecord
from giornata.domain.errors import NotFound
from giornata.protocol.admin import CreatedKey, CreateKey, Key, Scope

PREFIX_LENGTH = 8


def create_key(ctx: Context, caller: Caller, request: CreateKey) -> CreatedKey:
    """Make a key for the caller's project, or for another one if the caller governs the installation.

    Raises Forbidden for a caller that is no admin, and NotFound for a project that the caller cannot see.
    """
    require_admin(caller)
    project_id = request.project_id or caller.project_id
    if project_id != caller.project_id and not caller.is_root_admin:
        raise NotFound(f"there is no project {project_id}")
    secret, key = draw_key(ctx, project_id=project_id, scope=request.scope, name=request.name)
    with ctx.store.begin() as tx:
        if tx.projects.get(project_id) is None:
            raise NotFound(f"there is no project {project_id}")
        tx.keys.add(key)
    return CreatedKey(**key_reply(key).model_dump(), secret=secret)


def draw_key(ctx: Foundations, *, project_id: str, scope: Scope, name: str) -> tuple[str, KeyRecord]:
    """A fresh secret `gk_<prefix>_<random>`, and the row to store: it holds the secret's sha256 only."""
    prefix = hashlib.sha256(ctx.names.secret().encode()).hexdigest()[:PREFIX_LENGTH]
    secret = f"gk_{prefix}_{ctx.names.secret()}"
    return secret, key_of(ctx, secret, project_id=project_id, scope=scope, name=name)


def key_of(ctx: Foundations, secret: str, *, project_id: str, scope: Scope, name: str) -> KeyRecord:
    """The row of a secret `gk_<prefix>_<random>`."""
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
    """What is stored of a secret. It has 256 random bits, so a plain hash cannot be searched backwards."""
    return hashlib.sha256(secret.encode()).hexdigest()


def key_reply(key: KeyRecord) -> Key:
    """A key as its project's admins see it."""
    return Key(
        id=key.id,
        prefix=key.prefix,
        name=key.name,
        scope=Scope(key.scope),
        project_id=key.project_id,
        created_at=instant(key.created_at_ms),
        revoked_at=instant(key.revoked_at_ms),
        last_used_at=instant(key.last_used_at_ms),
    )
