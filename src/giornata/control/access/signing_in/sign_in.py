"""Sign in with a password. Failures are counted by account and address, so that a stranger cannot lock a person's
account.

A count is written before the password is looked at: however many tries come at once, each is counted.
"""

import hashlib
import ipaddress
from dataclasses import dataclass

from giornata.control.access.signing_in.sessions import OpenedSession, Visitor, open_session, visiting
from giornata.control.audit_log.record import record
from giornata.control.context import Context
from giornata.control.ports.user_queries.people_store import FailedSignIns, UserRecord
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.accounts.sign_in import pause_after_s
from giornata.domain.errors import SignInDelayed, Unauthenticated
from giornata.protocol.account.people import ChangePassword, SignIn
from giornata.protocol.project.admin import ROOT_PROJECT

COUNTED_MS = 24 * 3600 * 1000
FORGOTTEN_AT_ONCE = 100
IPV6_NETWORK = 64
REFUSAL = "the address or the password is wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One try to sign in: the account and where it came from, as they are counted."""

    account_sha256: str
    address: str


def sign_in(ctx: Context, request: SignIn, visitor: Visitor, *, earlier: str | None) -> OpenedSession:
    """Open a session for the owner of this password. The session of the secret `earlier`, which came with the
    request, ends: a session that an attacker planted is of no use.

    Raises Unauthenticated, alike for an unknown address and a wrong password, and SignInDelayed. Slow: for a thread.
    """
    user = known_user(ctx, request, visitor)
    if user is None:
        _note_failure(ctx, None, visitor)
        raise Unauthenticated(REFUSAL)
    with ctx.store.begin() as tx:
        return open_session(ctx, tx, user.id, visitor, earlier=earlier)


def known_user(ctx: Context, request: SignIn, visitor: Visitor) -> UserRecord | None:
    """Return the person with this address and password; None for an unknown address; then a password was hashed too,
    so that both cases take equally long.

    Raises Unauthenticated for a wrong password and for an account that was deactivated, and SignInDelayed.
    """
    email = request.email.lower()
    each = Try(account_sha256=hashlib.sha256(email.encode()).hexdigest(), address=network_of(visitor.address))
    _count(ctx, each)
    with ctx.store.read() as tx:
        user = tx.users.by_email(email)
    # An account without a password takes as long as an address without an account.
    stored = None if user is None else user.password_hash or None
    is_right = ctx.passwords.verify(stored, request.password.get_secret_value())
    if user is None:
        return None
    if not is_right or user.deactivated_at_ms is not None:
        _note_failure(ctx, user, visitor)
        raise Unauthenticated(REFUSAL)
    with ctx.store.begin() as tx:
        tx.sign_ins.clear(each.account_sha256, each.address)
    return user


def change_password(ctx: Context, user_id: str, session_id: str, request: ChangePassword, visitor: Visitor) -> None:
    """Set another password, and end the person's other sessions. Raises Unauthenticated, SignInDelayed."""
    with ctx.store.read() as tx:
        user = tx.users.get(user_id)
    if user is None:
        raise Unauthenticated(REFUSAL)
    if known_user(ctx, SignIn(email=user.email, password=request.password), visitor) is None:
        raise Unauthenticated(REFUSAL)
    password_hash, now_ms = ctx.passwords.hash(request.new_password.get_secret_value()), ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        tx.users.set_password(user_id, password_hash)
        tx.sessions.revoke_all(user_id, at_ms=now_ms, but=session_id)
        actor = visiting(user, visitor, session_id=session_id)
        record(tx, actor, AuditVerb.PASSWORD_CHANGE, user_id, at_ms=now_ms, project_id=ROOT_PROJECT)
    ctx.memory.forget_callers()


def _note_failure(ctx: Context, user: UserRecord | None, visitor: Visitor) -> None:
    """Log a wrong password, or an unknown address; both cost the same. What was typed is not kept: some type their
    password there. Tries that are refused unseen, because too many failed, are not logged.
    """
    target = "" if user is None else user.id
    actor, now_ms = visiting(None, visitor), ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        record(tx, actor, AuditVerb.SIGN_IN_FAILED, target, at_ms=now_ms, project_id=ROOT_PROJECT)


def network_of(address: str) -> str:
    """Return what failures are counted for: an IPv4 address, or the /64 of an IPv6 address, which one person has."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((int(found), IPV6_NETWORK), strict=False))
    return str(found)


def _count(ctx: Context, each: Try) -> None:
    """Count the try as a failure; success clears the count. Raises SignInDelayed."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        tx.sign_ins.forget(latest_before_ms=now_ms - COUNTED_MS, limit=FORGOTTEN_AT_ONCE)
        counted = tx.sign_ins.lock(each.account_sha256, each.address, at_ms=now_ms)
        if counted.closed_until_ms <= now_ms:
            failures = counted.failures + 1
            failed = FailedSignIns(failures=failures, closed_until_ms=now_ms + pause_after_s(failures) * 1000)
            tx.sign_ins.note(each.account_sha256, each.address, failed, at_ms=now_ms)
            return
    left_s = -(-(counted.closed_until_ms - now_ms) // 1000)
    raise SignInDelayed(f"too many sign-ins failed; the next one is taken in {left_s} s", retry_after_s=left_s)
