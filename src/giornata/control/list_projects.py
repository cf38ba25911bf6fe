"""The projects that a key sees."""

from giornata.control.context import Caller, Context
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.permissions import require_user
from giornata.control.project_reply import project_reply
from giornata.protocol.admin import ProjectPage


def list_projects(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> ProjectPage:
    """All projects for an admin of the installation, newest first; for everybody else their own."""
    require_user(caller)
    check_limit(limit)
    only = None if caller.is_root_admin else caller.project_id
    with ctx.store.read() as tx:
        rows = tx.projects.page(only=only, before=decode_cursor(cursor), limit=limit + 1)
        page, following = cut(rows, limit, lambda project: (project.created_at_ms, project.id))
        items = tuple(project_reply(tx, ctx, project) for project in page)
    return ProjectPage(items=items, next=following)
