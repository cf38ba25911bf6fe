"""The end of a key."""

from dataclasses import replace

from giornata.control.context import Caller, Context
from giornata.control.create_key import key_reply
from giornata.control.permissions import require_admin
from giornata.control.texts import is_id
from giornata.domain.errors import Conflict, NotFound
from giornata.protocol.admin import ROOT_PROJECT, Key, Scope


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
