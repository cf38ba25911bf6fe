"""Check the rights of all people who asked lately at once: in few statements, however many they are."""

from collections.abc import Mapping

from giornata.control.access.reach import reach_of_role
from giornata.control.access.signing_in.sessions import (
    NOT_OF_SESSIONS,
    USE_NOTED_EVERY_MS,
    has_ended,
    note_use,
)
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.user_queries.people_store import LiveSession

SESSION_KEPT_MS = 4_000
"""Milliseconds for which another server may take a session that has ended; the one that ended it takes it no more."""


def session_stands(ctx: Context, caller: Caller) -> bool:
    """Return True when this caller by session has the same rights still, as read at most SESSION_KEPT_MS ago. False
    when they are others, and when it is not known.

    One thread at a time asks the database, for all callers of whom something was asked lately.
    """
    sessions = ctx.memory.sessions
    if sessions.stands(caller, at_ms=ctx.clock.now_ms()):
        return True
    with sessions.renewal:
        if not sessions.stands(caller, at_ms=ctx.clock.now_ms()):
            _renew(ctx)
    return sessions.stands(caller, at_ms=ctx.clock.now_ms())


def _renew(ctx: Context) -> None:
    """Check all callers of whom something was asked lately, in two statements, and note the use of sessions."""
    sessions, now_ms, generation = ctx.memory.sessions, ctx.clock.now_ms(), ctx.memory.sessions.generation
    callers, used = sessions.asked_lately(at_ms=now_ms), sessions.take_used()
    with ctx.store.read() as tx:
        live = {each.id: each for each in tx.sessions.live([*{each.key_id for each in callers}, *used])}
        there = tx.projects.there(sorted({each.project_id for each in callers}))
    good = [each for each in callers if each.project_id in there and _is_good(each, live, now_ms)]
    if others := frozenset(callers) - frozenset(good):
        sessions.drop(others)
    sessions.renew(good, while_ms=range(now_ms, now_ms + SESSION_KEPT_MS), generation=generation)
    noted_ms = now_ms - USE_NOTED_EVERY_MS
    if stale := [each for each in used if each in live and live[each].last_used_at_ms < noted_ms]:
        note_use(ctx, stale, now_ms)


def _is_good(caller: Caller, live: Mapping[str, LiveSession], at_ms: int) -> bool:
    session = live.get(caller.key_id)
    if session is None or has_ended(session, at_ms):
        return False
    reach = reach_of_role(session.roles.get(caller.project_id), operator=session.operator)
    return reach - NOT_OF_SESSIONS == caller.scopes
