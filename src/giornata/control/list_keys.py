"""The keys of a project."""

from giornata.control.context import Caller, Context
from giornata.control.create_key import key_reply
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.permissions import require_admin
from giornata.protocol.admin import KeyPage


def list_keys(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> KeyPage:
    """Keys of the caller's project, of all projects for an admin of the installation; newest first, no secrets."""
    require_admin(caller)
    check_limit(limit)
    project_id = None if caller.is_root_admin else caller.project_id
    with ctx.store.read() as tx:
        rows = tx.keys.page(project_id=project_id, before=decode_cursor(cursor), limit=limit + 1)
    page, following = cut(rows, limit, lambda key: (key.created_at_ms, key.id))
    return KeyPage(items=tuple(map(key_reply, page)), next=following)
