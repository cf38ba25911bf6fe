"""Sessions of people: opened, found by their secret, listed, and ended.

A browser has the secret in a cookie that no script can read. The CSRF token is a function of the secret, which a
foreign page can neither read nor work out.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from giornata.control.access.keys import secret_hash
from giornata.control.access.reach import reach_of_user
from giornata.control.access.users import user_reply
from giornata.control.audit_log.record import AuditActor, record, record_call
from giornata.control.caller import Caller, RequestOrigin
from giornata.control.context import Context
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.people_store import LiveSession, MemberRecord, SessionRecord, UserRecord
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import ActorKind, AuditVerb
from giornata.domain.errors import Forbidden, NotFound, Unauthenticated, Unavailable
from giornata.protocol.account.people import CSRF_HEADER, SessionPage, SignedIn, UserSession
from giornata.protocol.project.admin import ROOT_PROJECT, Scope

SESSION_MS = 14 * 24 * 3600 * 1000
IDLE_MS = 3 * 24 * 3600 * 1000
KEPT_AFTER_MS = 30 * 24 * 3600 * 1000
FORGOTTEN_AT_ONCE = 100
# A person claims no work: the reach of a node is only for keys that the person makes.
NOT_OF_SESSIONS = frozenset({Scope.NODE})
USE_NOTED_EVERY_MS = 60_000
MOST_AGENT_CHARS = 256
SECRET = re.compile(r"gs_[A-Za-z0-9_-]{32,200}", re.ASCII)
REFUSAL = "this session is unknown or has ended; sign in again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """The client of a sign-in: the address that its connection came from, what it says that it is, and the id of the
    request.
    """

    address: str
    agent: str
    request_id: str = ""

    @property
    def origin(self) -> RequestOrigin:
        """Return the place of the sign-in, as the audit log keeps it."""
        return RequestOrigin(address=self.address, request_id=self.request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    """A session with its secret, which is stored nowhere."""

    secret: str = field(repr=False)
    reply: SignedIn


def open_session(
    ctx: Context, tx: Transaction, user_id: str, visitor: Visitor, *, earlier: str | None
) -> OpenedSession:
    """Open a session for the person; the session of the secret `earlier` ends. Raises Unauthenticated for an account
    that was deactivated a moment ago.
    """
    now_ms, secret = ctx.clock.now_ms(), f"gs_{ctx.names.secret()}"
    user = tx.users.lock(user_id)
    if user is None or user.deactivated_at_ms is not None:
        raise Unauthenticated(REFUSAL)
    if earlier is not None and (old := tx.sessions.by_secret(secret_hash(earlier))) is not None:
        tx.sessions.revoke(old.id, user_id=old.user_id, at_ms=now_ms)
        ctx.memory.forget_callers()
    tx.sessions.forget(ended_before_ms=now_ms - KEPT_AFTER_MS, limit=FORGOTTEN_AT_ONCE)
    session = SessionRecord(
        id=ctx.names.new("session"),
        user_id=user_id,
        secret_sha256=secret_hash(secret),
        created_at_ms=now_ms,
        expires_at_ms=now_ms + SESSION_MS,
        last_used_at_ms=now_ms,
        address=visitor.address[:64],
        agent=visitor.agent[:MOST_AGENT_CHARS],
    )
    tx.sessions.add(session)
    record(
        tx,
        visiting(user, visitor, session_id=session.id),
        AuditVerb.SIGN_IN,
        session.id,
        at_ms=now_ms,
        project_id=ROOT_PROJECT,
    )
    return OpenedSession(secret=secret, reply=_signed_in(session, user, secret))


def visiting(user: UserRecord | None, visitor: Visitor, *, session_id: str = "") -> AuditActor:
    """Return the person behind a visit as the audit log names it; without a person, the row names none."""
    if user is None:
        return AuditActor(kind=ActorKind.VISITOR, origin=visitor.origin)
    kind = ActorKind.OPERATOR if user.operator else ActorKind.USER
    return AuditActor(kind=kind, id=user.id, key_id=session_id, origin=visitor.origin)


def session_caller(ctx: Context, secret: str, project_id: str | None) -> Caller:
    """Return the person behind a session, in the project that the request names. Without a name it is the operator's
    project for an operator, else the project that the person joined first; a person of no project reaches nothing.

    Raises Unauthenticated, and NotFound for a project that the person is not in.
    """
    if SECRET.fullmatch(secret) is None:
        raise Unauthenticated(REFUSAL)
    if project_id is not None and not is_id(project_id):
        raise NotFound(f"there is no project {project_id[:64]}")
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        session = tx.sessions.by_secret(secret_hash(secret))
        user = live_user(tx, session, now_ms)
        caller = _caller(tx, session.id, user, project_id) if session is not None and user is not None else None
    if caller is None or session is None:
        raise Unauthenticated(REFUSAL)
    if session.last_used_at_ms < now_ms - USE_NOTED_EVERY_MS:
        note_use(ctx, [session.id], now_ms)
    return caller


def live_user(tx: Transaction, session: SessionRecord | None, at_ms: int) -> UserRecord | None:
    """Return the active person of a session that has not ended; None otherwise."""
    if session is None or session.revoked_at_ms is not None:
        return None
    if has_ended(session, at_ms):
        return None
    user = tx.users.get(session.user_id)
    return None if user is None or user.deactivated_at_ms is not None else user


def has_ended(session: SessionRecord | LiveSession, at_ms: int) -> bool:
    """Return True for a session that was open, or unused, for too long."""
    return at_ms >= min(session.expires_at_ms, session.last_used_at_ms + IDLE_MS)


def _caller(tx: Transaction, session_id: str, user: UserRecord, project_id: str | None) -> Caller:
    if project_id is None:
        project_id = ROOT_PROJECT if user.operator else _first_project(tx.memberships.of_user(user.id))
    elif tx.projects.get(project_id) is None:
        raise NotFound(f"there is no project {project_id}")
    scopes = reach_of_user(tx, user, project_id) - NOT_OF_SESSIONS
    if project_id and not scopes:
        raise NotFound(f"there is no project {project_id}")
    return Caller(project_id=project_id, scopes=scopes, key_id=session_id, user_id=user.id, is_session=True)


def _first_project(members: Sequence[MemberRecord]) -> str:
    return members[0].project_id if members else ""


def csrf_token(secret: str) -> str:
    """Return the token that belongs to a session's secret."""
    return hmac.new(secret.encode(), b"csrf-token", hashlib.sha256).hexdigest()


def is_csrf_token(expected: str, token: str) -> bool:
    """Return whether the token is the expected one, in a time that tells nothing about it."""
    return hmac.compare_digest(expected.encode(), token.encode())


def require_csrf(secret: str, token: str | None) -> None:
    """Raises Forbidden unless the token is the session's."""
    if token is None or not is_csrf_token(csrf_token(secret), token):
        raise Forbidden(f"a request by cookie needs the header {CSRF_HEADER}; GET /v1/session tells its value")


def read_session(ctx: Context, caller: Caller, secret: str) -> SignedIn:
    """Return the session of this request. Raises Unauthenticated."""
    with ctx.store.read() as tx:
        session = tx.sessions.get(caller.key_id)
        user = live_user(tx, session, ctx.clock.now_ms())
    if session is None or user is None:
        raise Unauthenticated(REFUSAL)
    return _signed_in(session, user, secret)


def list_sessions(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> SessionPage:
    """Return the person's sessions that have not ended, newest first. Raises Forbidden without a person."""
    user_id = require_person(caller)
    check_limit(limit)
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        rows = tx.sessions.page(user_id=user_id, live_at_ms=now_ms, before=decode_cursor(cursor), limit=limit + 1)
    page, following = cut(rows, limit, lambda session: (session.created_at_ms, session.id))
    return SessionPage(items=tuple(_session_reply(each, current=caller.key_id) for each in page), next=following)


def end_session(ctx: Context, caller: Caller, session_id: str) -> None:
    """End a session of the person; repeating it changes nothing. Raises Forbidden, and NotFound for another's."""
    user_id = require_person(caller)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        if not is_id(session_id) or not tx.sessions.revoke(session_id, user_id=user_id, at_ms=now_ms):
            raise NotFound(f"there is no session {session_id}")
        record_call(tx, caller, AuditVerb.SIGN_OUT, session_id, at_ms=now_ms, project_id=ROOT_PROJECT)
    ctx.memory.forget_callers()


def require_person(caller: Caller) -> str:
    """Return the id of the person who signed in. Raises Forbidden for a key: a session belongs to a person."""
    if not caller.is_session or caller.user_id is None:
        raise Forbidden("this takes a session: sign in with POST /v1/session")
    return caller.user_id


def note_use(ctx: Context, session_ids: Sequence[str], now_ms: int) -> None:
    """Note that these sessions were used; the latest note of each is at least USE_NOTED_EVERY_MS old."""
    # A database that is too busy for a note must not turn away a session that is good.
    with suppress(Unavailable), ctx.store.begin() as tx:
        tx.sessions.used(session_ids, at_ms=now_ms, unless_since_ms=now_ms - USE_NOTED_EVERY_MS)


def _signed_in(session: SessionRecord, user: UserRecord, secret: str) -> SignedIn:
    shown = _session_reply(session, current=session.id)
    return SignedIn(session=shown, csrf_token=csrf_token(secret), user=user_reply(user))


def _session_reply(session: SessionRecord, *, current: str) -> UserSession:
    return UserSession(
        id=session.id,
        created_at=instant(session.created_at_ms),
        last_used_at=instant(session.last_used_at_ms),
        expires_at=instant(session.expires_at_ms),
        address=session.address,
        agent=session.agent,
        current=session.id == current,
    )
