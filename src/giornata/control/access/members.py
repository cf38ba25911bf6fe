"""Members of projects: listed, given another role, removed. A removed member loses every key and session there."""

from giornata.control.access.permissions import require_admin, require_scope
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.people_store import MemberRecord, MembershipRecord
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict, Fault, InvalidInput, NotFound
from giornata.protocol.account.people import MemberPage, ProjectMember, Role, SetMember
from giornata.protocol.project.admin import ROOT_PROJECT, Scope


def list_members(ctx: Context, caller: Caller, project_id: str) -> MemberPage:
    """Return all members, by address. Raises Forbidden, and NotFound for another project."""
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        require_project(tx, caller, project_id)
        return MemberPage(items=tuple(map(member_reply, tx.memberships.of_project(project_id))))


def set_member(ctx: Context, caller: Caller, project_id: str, user_id: str, request: SetMember) -> ProjectMember:
    """Give a member another role. Only an operator adds a person who is no member; others send an invitation.

    A person who stops being an owner loses open invitations. Raises Forbidden for a caller that does not govern the
    project, NotFound, InvalidInput, and Conflict when no owner would be left.
    """
    require_admin(caller)
    check_role(project_id, request.role)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        require_project(tx, caller, project_id)
        role = _locked_role(tx, caller, project_id, user_id)
        if role == Role.OWNER and request.role is not Role.OWNER:
            _keep_an_owner(tx, caller, project_id, user_id)
        member = MembershipRecord(
            project_id=project_id,
            user_id=user_id,
            role=request.role,
            created_at_ms=now_ms,
            created_by=caller.maker,
        )
        tx.memberships.put(member)
        verb, changes = AuditVerb.MEMBER_SET, {"role": request.role, "role_before": role}
        record_call(tx, caller, verb, user_id, at_ms=now_ms, project_id=project_id, changes=changes)
        if request.role is not Role.OWNER:
            tx.invitations.revoke_of(user_id, project_id=project_id, at_ms=now_ms)
        found = next(each for each in tx.memberships.of_project(project_id) if each.user_id == user_id)
    ctx.memory.forget_callers()
    return member_reply(found)


def remove_member(ctx: Context, caller: Caller, project_id: str, user_id: str) -> ProjectMember:
    """Remove a member, with all keys and open invitations that this person made in the project. Every member may
    leave.

    Raises Forbidden, NotFound, and Conflict when no owner would be left.
    """
    leaves = caller.is_session and caller.user_id == user_id
    if not leaves:
        require_admin(caller)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        require_project(tx, caller, project_id)
        members = tx.memberships.of_project(project_id)
        found = next((each for each in members if each.user_id == user_id), None)
        if found is None:
            raise NotFound(f"there is no member {user_id}")
        if found.role == Role.OWNER:
            _keep_an_owner(tx, caller, project_id, user_id)
        tx.memberships.drop(user_id, project_id)
        verb, changes = AuditVerb.MEMBER_REMOVE, {"role_before": found.role}
        record_call(tx, caller, verb, user_id, at_ms=now_ms, project_id=project_id, changes=changes)
        tx.keys.revoke_of(user_id, project_id=project_id, at_ms=now_ms)
        tx.invitations.revoke_of(user_id, project_id=project_id, at_ms=now_ms)
        tx.webhooks.drop_of_person(user_id, project_id=project_id)
    ctx.memory.forget_callers()
    return member_reply(found)


def require_project(tx: Transaction, caller: Caller, project_id: str) -> None:
    """Raises NotFound for a project that the caller does not see: another one, unless the caller is an operator."""
    seen = project_id == caller.project_id or caller.is_root_admin
    if not seen or not is_id(project_id) or tx.projects.get(project_id) is None:
        raise NotFound(f"there is no project {project_id}")


def check_role(project_id: str, role: Role) -> None:
    """Raises InvalidInput for an owner of the operator's project, whose admins govern the installation."""
    if project_id == ROOT_PROJECT and role is Role.OWNER:
        message, hint = "the operator's project has no owners", "make the person an operator: giornata user change"
        raise InvalidInput([Fault(where="role", message=message, hint=hint)])


def _locked_role(tx: Transaction, caller: Caller, project_id: str, user_id: str) -> str | None:
    """Return the person's role. Raises NotFound for a person that the caller does not see."""
    user = tx.users.lock(user_id) if is_id(user_id) else None
    role = None if user is None else tx.memberships.role(user_id, project_id)
    if user is None or (role is None and not caller.is_root_admin):
        raise NotFound(f"there is no member {user_id}")
    return role


def _keep_an_owner(tx: Transaction, caller: Caller, project_id: str, user_id: str) -> None:
    # An operator may do it: who governs the installation reaches the project all the same.
    if not caller.is_root_admin and list(tx.memberships.lock_owners(project_id)) == [user_id]:
        raise Conflict("this is the last owner of the project; make another member an owner first")


def member_reply(member: MemberRecord) -> ProjectMember:
    """Return a membership as the project's members see it."""
    return ProjectMember(
        user_id=member.user_id,
        project_id=member.project_id,
        email=member.email,
        name=member.name,
        role=Role(member.role),
        created_at=instant(member.created_at_ms),
        created_by=member.created_by,
    )
