"""New tenants."""

from giornata.control.context import Caller, Context
from giornata.control.instants import instant
from giornata.control.permissions import require_root_admin
from giornata.control.ports.records import ProjectRecord
from giornata.domain.errors import Conflict
from giornata.protocol.admin import CreateProject, Project


def create_project(ctx: Context, caller: Caller, request: CreateProject) -> Project:
    """Make a project. Raises Forbidden unless the caller governs the installation, Conflict when the id is taken."""
    require_root_admin(caller)
    project = ProjectRecord(id=request.id, name=request.name or request.id, created_at_ms=ctx.clock.now_ms())
    with ctx.store.begin() as tx:
        if not tx.projects.add(project):
            raise Conflict(f"there is a project {request.id} already")
    return project_reply(project)


def project_reply(project: ProjectRecord) -> Project:
    """A project as its members see it."""
    return Project(id=project.id, name=project.name, created_at=instant(project.created_at_ms))
