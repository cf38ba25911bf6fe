"""Find the caller of a request: keys of users and nodes, tokens of providers, and the token of an attempt.

An attempt's token comes with its lease. The token is a function of the attempt's id and the signing key, so that a
repeated claim gets the same token.
"""

import hashlib
import hmac
import re
from contextlib import suppress

from giornata.control.access.install import signing_key
from giornata.control.access.keys import secret_hash
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.records import KeyRecord
from giornata.domain.errors import Unauthenticated, Unavailable
from giornata.protocol.admin import ROOT_PROJECT, Scope

USE_NOTED_EVERY_MS = 60_000
# How long another server may go on taking a key that was revoked; the server that revoked it takes it no more.
KEPT_MS = 5_000
# How long an open stream, or a claim that waits, relies on a key that was found good. Both look every five seconds:
# they end within ten seconds of the revocation.
STANDING_KEPT_MS = 4_000
SECRET = re.compile(r"gk_[0-9a-f]{8}_[A-Za-z0-9_-]{1,200}", re.ASCII)
# Three parts in base64url: a JSON Web Token. No key of ours has a dot in it.
TOKEN = re.compile(r"[A-Za-z0-9_-]{2,1024}\.[A-Za-z0-9_-]{2,2048}\.[A-Za-z0-9_-]{2,1024}", re.ASCII)
REFUSAL = "this key is unknown or revoked; pass one as `Authorization: Bearer gk_…`"


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
    if key is None or not hmac.compare_digest(key.secret_sha256, wanted) or key.revoked_at_ms is not None:
        raise Unauthenticated(REFUSAL)
    noted_ms = key.last_used_at_ms
    if noted_ms is None or noted_ms < now_ms - USE_NOTED_EVERY_MS:
        _note_use(ctx, key.id, now_ms)
        noted_ms = now_ms
    caller = _caller(ctx, key)
    until_ms = min(now_ms + KEPT_MS, noted_ms + USE_NOTED_EVERY_MS + 1)  # when its use is to be noted again
    ctx.memory.remember_caller(wanted, caller, while_ms=range(now_ms, until_ms), generation=generation)
    return caller


def _caller(ctx: Context, key: KeyRecord) -> Caller:
    most, usual = key.max_price_micro_usd_per_hour, ctx.policy.max_node_price_micro_usd_per_hour
    return Caller(
        project_id=key.project_id,
        scope=Scope(key.scope),
        key_id=key.id,
        fleet=key.fleet,
        max_price_micro_usd_per_hour=usual if most is None else most,
    )


def require_standing(ctx: Context, caller: Caller) -> None:
    """Check again a caller that was let in a while ago, and stays. Raises Unauthenticated for a key that was revoked
    meanwhile, and for a token that ran out.

    Asks the database at most once in STANDING_KEPT_MS for each key.
    """
    now_ms, generation = ctx.clock.now_ms(), ctx.memory.generation
    if caller.workload is not None:
        if caller.workload.expires_at_ms <= now_ms:
            raise Unauthenticated("the token of this node has run out; send a new one")
        return
    if ctx.memory.stands(caller.key_id, at_ms=now_ms):
        return
    with ctx.store.read() as tx:
        key = tx.keys.get(caller.key_id, project_id=caller.project_id)
    if key is None or key.revoked_at_ms is not None:
        raise Unauthenticated(REFUSAL)
    while_ms = range(now_ms, now_ms + STANDING_KEPT_MS)
    ctx.memory.remember_standing(caller.key_id, while_ms=while_ms, generation=generation)


def _workload(ctx: Context, token: str) -> Caller:
    """Return the caller that a provider's token names. It is remembered until the token runs out, and never longer:
    the token ends the permission.
    """
    known, now_ms, generation = remembered(ctx, token), ctx.clock.now_ms(), ctx.memory.generation
    if known is not None:
        return known
    workload = ctx.identities.recognise(token)
    key_id = f"workload:{workload.fleet}:{workload.machine_id}"
    caller = Caller(
        project_id=ROOT_PROJECT,
        scope=Scope.NODE,
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
