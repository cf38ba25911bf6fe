"""Find the caller of a request: keys, sessions of people, tokens of providers, and the token of an attempt.

An attempt's token comes with its lease. The token is a function of the attempt's id and the signing key, so that a
repeated claim gets the same token.
"""

import hashlib
import hmac
import re
from contextlib import suppress

from giornata.control.access.install import signing_key
from giornata.control.access.keys import is_live, secret_hash
from giornata.control.access.permissions import read_scopes
from giornata.control.access.reach import NOTHING, reach_of_person, reach_of_user
from giornata.control.access.signing_in.renewal import SESSION_KEPT_MS, session_stands
from giornata.control.access.signing_in.sessions import live_user, session_caller
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.memory.known_sessions import FOR_EVER
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import KeyRecord
from giornata.domain.errors import Unauthenticated, Unavailable
from giornata.protocol.project.admin import ROOT_PROJECT, Scope

USE_NOTED_EVERY_MS = 60_000
# How long another server may go on taking a key or a session that has ended; the server that ended it takes it no
# more.
KEPT_MS = 4_000
# How long an open stream, or a claim that waits, relies on a key that was found good. Streams are checked
# twice a second, so that they end within five seconds.
STANDING_KEPT_MS = 4_000
NEVER_MS = 2**62
SECRET = re.compile(r"gk_[0-9a-f]{8}_[A-Za-z0-9_-]{1,200}", re.ASCII)
# Three parts in base64url: a JSON Web Token. No key of ours has a dot in it.
TOKEN = re.compile(r"[A-Za-z0-9_-]{2,1024}\.[A-Za-z0-9_-]{2,2048}\.[A-Za-z0-9_-]{2,1024}", re.ASCII)
REFUSAL = "this key is unknown, revoked or expired; pass one as `Authorization: Bearer gk_…`"


def remembered(ctx: Context, secret: str) -> Caller | None:
    """Return the owner of this secret, if `authenticate` found it a moment ago. Asks no database."""
    return ctx.memory.caller(secret_hash(secret), at_ms=ctx.clock.now_ms())


def authenticate(ctx: Context, secret: str) -> Caller:
    """Return the owner of this secret. Raises Unauthenticated when it is malformed, unknown or revoked: one answer
    for all.

    The key is found by its hash, whose lookup tells nothing about the secret, and compared in constant time. A token
    that a provider gave to its workload makes a node of the operator's project, on the machine that the token names;
    then Unavailable is raised when the provider's keys cannot be had.
    """
    if TOKEN.fullmatch(secret) is not None:
        return _workload(ctx, secret)
    if SECRET.fullmatch(secret) is None:
        raise Unauthenticated(REFUSAL)
    wanted, now_ms, generation = secret_hash(secret), ctx.clock.now_ms(), ctx.memory.generation
    known = remembered(ctx, secret)
    if known is not None:
        return known
    with ctx.store.read() as tx:
        key = tx.keys.by_secret(wanted)
        scopes = _reach(tx, key)
    good_until_ms = None if key is None else _good_until_ms(key, wanted, now_ms)
    if key is None or good_until_ms is None or not scopes:
        raise Unauthenticated(REFUSAL)
    noted_ms = key.last_used_at_ms
    if noted_ms is None or noted_ms < now_ms - USE_NOTED_EVERY_MS:
        _note_use(ctx, key.id, now_ms)
        noted_ms = now_ms
    caller = _caller(ctx, key, scopes)
    # Asked again when its use is to be noted again, or when it ends.
    until_ms = min(now_ms + KEPT_MS, noted_ms + USE_NOTED_EVERY_MS + 1, good_until_ms)
    ctx.memory.remember_caller(wanted, caller, while_ms=range(now_ms, until_ms), generation=generation)
    return caller


def _reach(tx: Transaction, key: KeyRecord | None) -> frozenset[Scope]:
    """Return what the key reaches now: its scopes, as far as the person behind it reaches."""
    if key is None:
        return NOTHING
    scopes = read_scopes(key.scope)
    return scopes if key.user_id is None else scopes & reach_of_person(tx, key.user_id, key.project_id)


def _good_until_ms(key: KeyRecord, secret_sha256: str, at_ms: int) -> int | None:
    """Return until when this secret of the key is good, as far as is known now; None: it is good no more."""
    if not is_live(key, at_ms):
        return None
    ends = [NEVER_MS if key.expires_at_ms is None else key.expires_at_ms]
    if hmac.compare_digest(key.secret_sha256, secret_sha256):
        return ends[0]
    previous = key.previous_sha256 or ""
    if not hmac.compare_digest(previous, secret_sha256) or at_ms >= (key.previous_until_ms or 0):
        return None
    return min(*ends, key.previous_until_ms or 0)


def _caller(ctx: Context, key: KeyRecord, scopes: frozenset[Scope]) -> Caller:
    most, usual = key.max_price_micro_usd_per_hour, ctx.policy.max_node_price_micro_usd_per_hour
    return Caller(
        project_id=key.project_id,
        scopes=scopes,
        key_id=key.id,
        user_id=key.user_id,
        is_login=key.login,
        expires_at_ms=key.expires_at_ms,
        fleet=key.fleet,
        max_price_micro_usd_per_hour=usual if most is None else most,
    )


def signed_in(ctx: Context, secret: str, project_id: str | None) -> Caller:
    """Return the person behind a session's secret, as `session_caller` does, or as it did a moment ago. One that was
    found good before is checked again together with the others.
    """
    sessions, known_as = ctx.memory.sessions, _session_in(secret, project_id)
    known = sessions.caller(known_as, at_ms=ctx.clock.now_ms())
    if known is not None:
        sessions.use(known)
        if session_stands(ctx, known):
            return known
    now_ms, generation = ctx.clock.now_ms(), sessions.generation
    caller = session_caller(ctx, secret, project_id)
    while_ms = range(now_ms, now_ms + SESSION_KEPT_MS)
    # Without a name it is the person's first project, which may become another one.
    named_ms = while_ms if project_id is None else FOR_EVER
    sessions.remember(known_as, caller, while_ms=while_ms, named_ms=named_ms, generation=generation)
    return caller


def remembered_person(ctx: Context, secret: str, project_id: str | None) -> Caller | None:
    """Return the person behind a session's secret, if that person's rights were read lately. Asks no database."""
    sessions, now_ms = ctx.memory.sessions, ctx.clock.now_ms()
    known = sessions.caller(_session_in(secret, project_id), at_ms=now_ms)
    if known is None or not sessions.stands(known, at_ms=now_ms):
        return None
    sessions.use(known)
    return known


def _session_in(secret: str, project_id: str | None) -> str:
    return secret_hash(f"{secret}\n{project_id or ''}")


def require_standing(ctx: Context, caller: Caller) -> None:
    """Check again a caller that was let in a while ago, and stays. Raises Unauthenticated for a key or a session that
    has ended meanwhile or reaches less than it did, and for a token that ran out.

    Asks the database at most once in STANDING_KEPT_MS for callers with equal scopes by one key, and once for all
    sessions together.
    """
    now_ms, generation = ctx.clock.now_ms(), ctx.memory.generation
    if caller.workload is not None:
        if caller.workload.expires_at_ms <= now_ms:
            raise Unauthenticated("the token of this node has run out; send a new one")
        return
    # With the scopes: a caller with fewer of them still stands where one with more does not any longer.
    stands_as = " ".join([caller.key_id, caller.project_id, *sorted(caller.scopes)])
    if ctx.memory.stands(stands_as, at_ms=now_ms) or (caller.is_session and session_stands(ctx, caller)):
        return
    with ctx.store.read() as tx:
        scopes = _present_reach(tx, caller, now_ms)
    if caller.scopes - scopes:
        raise Unauthenticated(REFUSAL)
    while_ms = range(now_ms, now_ms + STANDING_KEPT_MS)
    ctx.memory.remember_standing(stands_as, while_ms=while_ms, generation=generation)


def _present_reach(tx: Transaction, caller: Caller, at_ms: int) -> frozenset[Scope]:
    if caller.is_session:
        user = live_user(tx, tx.sessions.get(caller.key_id), at_ms)
        return reach_of_user(tx, user, caller.project_id)
    key = tx.keys.get(caller.key_id, project_id=caller.project_id)
    return _reach(tx, key) if key is not None and is_live(key, at_ms) else NOTHING


def _workload(ctx: Context, token: str) -> Caller:
    """Return the caller that a provider's token names. It is remembered until the token runs out, and never longer:
    the token ends the permission.
    """
    known, now_ms, generation = remembered(ctx, token), ctx.clock.now_ms(), ctx.memory.generation
    if known is not None:
        return known
    workload = ctx.identities.recognize(token)
    key_id = f"workload:{workload.fleet}:{workload.machine_id}"
    caller = Caller(
        project_id=ROOT_PROJECT,
        scopes=Scope.NODE.reach,
        key_id=key_id,
        workload=workload,
        max_price_micro_usd_per_hour=ctx.policy.max_node_price_micro_usd_per_hour,
    )
    while_ms = range(now_ms, workload.expires_at_ms)
    ctx.memory.remember_caller(secret_hash(token), caller, while_ms=while_ms, generation=generation)
    return caller


def _note_use(ctx: Context, key_id: str, now_ms: int) -> None:
    # A database that is too busy for a note must not turn away a key that is good.
    with suppress(Unavailable), ctx.store.begin() as tx:
        tx.keys.used(key_id, at_ms=now_ms, unless_since_ms=now_ms - USE_NOTED_EVERY_MS)


def attempt_token(key: bytes, attempt_id: str) -> str:
    """Return the attempt's token, `att_….<HMAC-SHA256 of the attempt's id>`."""
    return f"{attempt_id}.{_mac(key, attempt_id)}"


def verify(ctx: Context, attempt_id: str, token: str) -> None:
    """Raises Unauthenticated unless the token is this attempt's. Other code checks that the attempt lives."""
    expected = attempt_token(signing_key(ctx), attempt_id)
    if not hmac.compare_digest(expected.encode(), token.encode()):
        raise Unauthenticated("this token is not the attempt's; send the token that came with its lease")


def _mac(key: bytes, attempt_id: str) -> str:
    # The purpose is part of the message: the same key signs URLs.
    return hmac.new(key, f"attempt-token:{attempt_id}".encode(), hashlib.sha256).hexdigest()
