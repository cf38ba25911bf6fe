"""Invitations to projects: a link that lets one person in, once, for a while."""

from dataclasses import replace

from giornata.control.access.keys import secret_hash
from giornata.control.access.members import check_role, require_project
from giornata.control.access.permissions import require_admin
from giornata.control.access.signing_in.sessions import OpenedSession, Visitor, open_session, visiting
from giornata.control.access.signing_in.sign_in import known_user
from giornata.control.access.users import new_user
from giornata.control.audit_log.record import record, record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.people_store import InvitationRecord, MembershipRecord, UserRecord
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict, Fault, InvalidInput, NotFound
from giornata.protocol.account.people import (
    AcceptInvitation,
    CreatedInvitation,
    CreateInvitation,
    InvitationPage,
    ProjectInvitation,
    Role,
)

LEAST_PASSWORD_CHARS = 12
REFUSAL = "this invitation is unknown, used, revoked or expired; ask for another one"
ROLES = tuple(Role)


def create_invitation(ctx: Context, caller: Caller, request: CreateInvitation) -> CreatedInvitation:
    """Make an invitation to the caller's project, or to another one if the caller governs the installation.

    Raises Forbidden for a caller that does not govern the project, NotFound, and InvalidInput.
    """
    require_admin(caller)
    project_id = request.project_id or caller.project_id
    check_role(project_id, request.role)
    now_ms, secret = ctx.clock.now_ms(), f"gi_{ctx.names.secret()}"
    invitation = InvitationRecord(
        id=ctx.names.new("invitation"),
        project_id=project_id,
        role=request.role,
        secret_sha256=secret_hash(secret),
        created_at_ms=now_ms,
        created_by=caller.maker,
        user_id=caller.user_id,
        expires_at_ms=now_ms + request.expires_in_s * 1000,
    )
    with ctx.store.begin() as tx:
        require_project(tx, caller, project_id)
        tx.invitations.add(invitation)
        verb, ends_ms = AuditVerb.INVITATION_CREATE, invitation.expires_at_ms
        changes = {"role": request.role, "expires_at_ms": ends_ms}
        record_call(tx, caller, verb, invitation.id, at_ms=now_ms, project_id=project_id, changes=changes)
    return CreatedInvitation(**invitation_reply(invitation).model_dump(), secret=secret)


def list_invitations(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> InvitationPage:
    """Return the invitations of the caller's project, newest first. Raises Forbidden."""
    require_admin(caller)
    check_limit(limit)
    with ctx.store.read() as tx:
        rows = tx.invitations.page(project_id=caller.project_id, before=decode_cursor(cursor), limit=limit + 1)
    page, following = cut(rows, limit, lambda each: (each.created_at_ms, each.id))
    return InvitationPage(items=tuple(map(invitation_reply, page)), next=following)


def revoke_invitation(ctx: Context, caller: Caller, invitation_id: str) -> ProjectInvitation:
    """Refuse the link from now on; one that was used stays used. Raises Forbidden, NotFound."""
    require_admin(caller)
    project_id = None if caller.is_root_admin else caller.project_id
    with ctx.store.begin() as tx:
        found = tx.invitations.get(invitation_id, project_id=project_id) if is_id(invitation_id) else None
        if found is None:
            raise NotFound(f"there is no invitation {invitation_id}")
        if found.revoked_at_ms is None and found.accepted_at_ms is None:
            now_ms, verb = ctx.clock.now_ms(), AuditVerb.INVITATION_REVOKE
            tx.invitations.revoke(invitation_id, at_ms=now_ms)
            record_call(tx, caller, verb, invitation_id, at_ms=now_ms, project_id=found.project_id)
            found = tx.invitations.get(invitation_id, project_id=project_id) or found
    return invitation_reply(found)


def accept_invitation(
    ctx: Context, request: AcceptInvitation, visitor: Visitor, *, earlier: str | None
) -> OpenedSession:
    """Join the project, with the account of this address or with a new one, and sign in.

    A member keeps the higher of the two roles. Raises NotFound for an invitation that is of no use, Unauthenticated
    for a wrong password of a known address, InvalidInput, and SignInDelayed. Slow: for a thread.
    """
    wanted = secret_hash(request.secret.get_secret_value())
    with ctx.store.read() as tx:
        open_invitation(ctx, tx, wanted)
    user = known_user(ctx, request, visitor)
    made = None if user is not None else _new_account(ctx, request)
    person = user or made
    assert person is not None  # noqa: S101 - one of the two is there
    with ctx.store.begin() as tx:
        invitation = open_invitation(ctx, tx, wanted)
        if made is not None and not tx.users.add(replace(made, created_by=invitation.id)):
            raise Conflict("this address has just got an account; accept the invitation again")
        role = use_invitation(ctx, tx, person.id, invitation)
        opened = open_session(ctx, tx, person.id, visitor, earlier=earlier)
        actor, verb = visiting(person, visitor, session_id=opened.reply.session.id), AuditVerb.INVITATION_ACCEPT
        owner, now_ms = invitation.project_id, ctx.clock.now_ms()
        record(tx, actor, verb, invitation.id, at_ms=now_ms, project_id=owner, changes={"role": role})
    return replace(opened, reply=opened.reply.model_copy(update={"project_id": invitation.project_id}))


def read_invitation(ctx: Context, secret: str) -> ProjectInvitation:
    """Return the invitation with this secret. Raises NotFound for one that is of no use."""
    with ctx.store.read() as tx:
        return invitation_reply(open_invitation(ctx, tx, secret_hash(secret)))


def open_invitation(ctx: Context, tx: Transaction, secret_sha256: str) -> InvitationRecord:
    """Return the invitation with this secret. Raises NotFound for one that is of no use."""
    invitation = tx.invitations.by_secret(secret_sha256)
    if (
        invitation is None
        or invitation.accepted_at_ms is not None
        or invitation.revoked_at_ms is not None
        or invitation.expires_at_ms <= ctx.clock.now_ms()
    ):
        raise NotFound(REFUSAL)
    return invitation


def _new_account(ctx: Context, request: AcceptInvitation) -> UserRecord:
    password = request.password.get_secret_value()
    if len(password) < LEAST_PASSWORD_CHARS:
        hint = f"a new account needs {LEAST_PASSWORD_CHARS} characters or more; length is what counts"
        raise InvalidInput([Fault(where="password", message="is too short", hint=hint)])
    return new_user(ctx, request.email, request.name, ctx.passwords.hash(password), created_by=None)


def use_invitation(ctx: Context, tx: Transaction, user_id: str, invitation: InvitationRecord) -> Role:
    """Add the person to the project, and mark the invitation as used. Return the person's role in the project.

    Raises NotFound when it has just been used.
    """
    if not tx.invitations.accept(invitation.id, user_id=user_id, at_ms=ctx.clock.now_ms()):
        raise NotFound(REFUSAL)
    now = tx.memberships.role(user_id, invitation.project_id)
    role = Role(invitation.role)
    if now is not None:
        role = max(role, Role(now), key=ROLES.index)
    member = MembershipRecord(
        project_id=invitation.project_id,
        user_id=user_id,
        role=role,
        created_at_ms=ctx.clock.now_ms(),
        created_by=invitation.created_by,
    )
    tx.memberships.put(member)
    return role


def invitation_reply(invitation: InvitationRecord) -> ProjectInvitation:
    """Return an invitation without its secret."""
    return ProjectInvitation(
        id=invitation.id,
        project_id=invitation.project_id,
        role=Role(invitation.role),
        created_at=instant(invitation.created_at_ms),
        created_by=invitation.created_by,
        expires_at=instant(invitation.expires_at_ms),
        accepted_at=instant(invitation.accepted_at_ms),
        accepted_by=invitation.accepted_by,
        revoked_at=instant(invitation.revoked_at_ms),
    )
