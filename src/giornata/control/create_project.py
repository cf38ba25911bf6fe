"""New tenants."""

from giornata.control.context import Caller, Context
from giornata.control.permissions import require_root_admin
from giornata.control.ports.records import ProjectRecord
from giornata.control.project_reply import project_reply
from giornata.domain.errors import Conflict
from giornata.protocol.admin import CreateProject, Project


def create_project(ctx: Context, caller: Caller, request: CreateProject) -> Project:
    """Make a project. Raises Forbidden unless the caller governs the installation, Conflict when the id is taken."""
    require_root_admin(caller)
    project = ProjectRecord(id=request.id, name=request.name or request.id, created_at_ms=ctx.clock.now_ms())
    with ctx.store.begin() as tx:
        if not tx.projects.add(project):
            raise Conflict(f"there is a project {request.id} already")
        return project_reply(tx, ctx, project)
