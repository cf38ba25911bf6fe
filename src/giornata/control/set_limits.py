"""What an operator allows a project besides money."""

from giornata.control.context import Caller, Context
from giornata.control.permissions import require_root_admin
from giornata.control.project_reply import read_project
from giornata.control.texts import is_id
from giornata.domain.errors import NotFound
from giornata.protocol.admin import Project, SetLimits


def set_project_limits(ctx: Context, caller: Caller, project_id: str, request: SetLimits) -> Project:
    """Set a project's limits, or lift them to those of the installation. Datasets that exist stay as they are.

    Raises Forbidden unless the caller governs the installation, NotFound.
    """
    require_root_admin(caller)
    with ctx.store.begin() as tx:
        if not is_id(project_id) or not tx.projects.set_max_pictures(project_id, request.max_pictures):
            raise NotFound(f"there is no project {project_id}")
        return read_project(tx, ctx, project_id)
