"""Accounts of people: made, listed, made operators, deactivated."""

from dataclasses import replace

from giornata.control.access.permissions import require_root_admin
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.ports.user_queries.people_store import UserRecord
from giornata.control.text_limits import is_id, text_faults
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict, InvalidInput, NotFound
from giornata.protocol.account.people import ChangeUser, CreateUser, User, UserPage
from giornata.protocol.project.admin import ROOT_PROJECT


def create_user(ctx: Context, caller: Caller, request: CreateUser) -> User:
    """Make an account. Raises Forbidden unless the caller governs the installation, InvalidInput, and Conflict when
    the address is taken. Slow: for a thread.
    """
    require_root_admin(caller)
    password_hash = ctx.passwords.hash(request.password.get_secret_value())
    user = new_user(ctx, request.email, request.name, password_hash, created_by=caller.maker)
    user = replace(user, operator=request.operator)
    with ctx.store.begin() as tx:
        if not tx.users.add(user):
            raise Conflict(f"there is an account {user.email} already")
        verb, changes = AuditVerb.USER_CREATE, {"operator": user.operator}
        record_call(tx, caller, verb, user.id, at_ms=user.created_at_ms, project_id=ROOT_PROJECT, changes=changes)
    return user_reply(user)


def new_user(ctx: Context, email: str, name: str | None, password_hash: str, *, created_by: str | None) -> UserRecord:
    """Return the row of a new account. Raises InvalidInput for a name that is of no use."""
    if faults := text_faults("name", name):
        raise InvalidInput(faults)
    return UserRecord(
        id=ctx.names.new("user"),
        email=email.lower(),
        name=name or email.partition("@")[0],
        password_hash=password_hash,
        operator=False,
        created_at_ms=ctx.clock.now_ms(),
        created_by=created_by,
    )


def list_users(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> UserPage:
    """Return all people, newest first. Raises Forbidden unless the caller governs the installation."""
    require_root_admin(caller)
    check_limit(limit)
    with ctx.store.read() as tx:
        rows = tx.users.page(before=decode_cursor(cursor), limit=limit + 1)
    page, following = cut(rows, limit, lambda user: (user.created_at_ms, user.id))
    return UserPage(items=tuple(map(user_reply, page)), next=following)


def change_user(ctx: Context, caller: Caller, user_id: str, request: ChangeUser) -> User:
    """Make a person an operator or none any more, set a new password, or deactivate an account and take it up again.

    A deactivated person loses all sessions, keys and open invitations for ever; an operator who is none any more
    loses the invitations. Raises Forbidden unless the caller governs the installation, and NotFound. Slow: for a
    thread.
    """
    require_root_admin(caller)
    password_hash = None if request.password is None else ctx.passwords.hash(request.password.get_secret_value())
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        user = tx.users.lock(user_id) if is_id(user_id) else None
        if user is None:
            raise NotFound(f"there is no account {user_id}")
        if request.operator is not None:
            tx.users.set_operator(user_id, operator=request.operator)
            user = replace(user, operator=request.operator)
        if request.active is not None:
            ended_ms = None if request.active else user.deactivated_at_ms or now_ms
            tx.users.set_deactivated(user_id, ended_ms)
            user = replace(user, deactivated_at_ms=ended_ms)
        if password_hash is not None:
            tx.users.set_password(user_id, password_hash)
        if request.active is False or password_hash is not None:
            tx.sessions.revoke_all(user_id, at_ms=now_ms)
        if request.active is False or request.operator is False:
            tx.invitations.revoke_of(user_id, project_id=None, at_ms=now_ms)
        if request.active is False:
            tx.keys.revoke_of(user_id, project_id=None, at_ms=now_ms)
            tx.webhooks.drop_of_person(user_id, project_id=None)
        changes = {"operator": request.operator, "active": request.active, "password": password_hash is not None}
        verb = AuditVerb.USER_CHANGE
        record_call(tx, caller, verb, user_id, at_ms=now_ms, project_id=ROOT_PROJECT, changes=changes)
    ctx.memory.forget_callers()
    return user_reply(user)


def user_reply(user: UserRecord) -> User:
    """Return an account without its password."""
    return User(
        id=user.id,
        email=user.email,
        name=user.name,
        operator=user.operator,
        created_at=instant(user.created_at_ms),
        created_by=user.created_by,
        deactivated_at=instant(user.deactivated_at_ms),
    )
