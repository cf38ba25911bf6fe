"""What a server remembers between requests is bounded in age, and never outlives what it was told itself."""

from dataclasses import replace

import pytest
from tests.fixtures.users import ANN_ADMIN, move_in
from tests.fixtures.world import ManualClock

from giornata.control.authenticate import KEPT_MS, authenticate, remembered
from giornata.control.context import Context
from giornata.control.create_key import create_key
from giornata.control.memory import Memory
from giornata.control.revoke_key import revoke_key
from giornata.domain.errors import Unauthenticated
from giornata.protocol.admin import CreateKey


def another_server(ctx: Context) -> Context:
    """On the same database, with a memory of its own."""
    return replace(ctx, memory=Memory())


def test_a_key_that_was_revoked_here_is_refused_at_once(ctx: Context) -> None:
    move_in(ctx)
    created = create_key(ctx, ANN_ADMIN, CreateKey())
    authenticate(ctx, created.secret)
    assert remembered(ctx, created.secret) is not None
    revoke_key(ctx, ANN_ADMIN, created.id)
    assert remembered(ctx, created.secret) is None
    with pytest.raises(Unauthenticated):
        authenticate(ctx, created.secret)


def test_a_key_that_was_revoked_elsewhere_is_refused_seconds_later(ctx: Context, clock: ManualClock) -> None:
    move_in(ctx)
    created = create_key(ctx, ANN_ADMIN, CreateKey())
    authenticate(ctx, created.secret)
    revoke_key(another_server(ctx), ANN_ADMIN, created.id)
    clock.advance_s(KEPT_MS / 1000 - 0.001)
    assert authenticate(ctx, created.secret).project_id == "ann"
    clock.advance_s(0.001)
    with pytest.raises(Unauthenticated):
        authenticate(ctx, created.secret)


def test_a_clock_that_was_set_back_makes_nothing_last_longer(ctx: Context, clock: ManualClock) -> None:
    move_in(ctx)
    created = create_key(ctx, ANN_ADMIN, CreateKey())
    authenticate(ctx, created.secret)
    revoke_key(another_server(ctx), ANN_ADMIN, created.id)
    clock.advance_s(-3600)
    with pytest.raises(Unauthenticated):
        authenticate(ctx, created.secret)


def test_what_was_read_before_a_revocation_is_not_remembered_after_it(ctx: Context) -> None:
    caller = ANN_ADMIN
    memory = Memory()
    before = memory.generation
    memory.forget_callers()
    memory.remember_caller("hash", caller, while_ms=range(10), generation=before)
    assert memory.caller("hash", at_ms=1) is None
    memory.remember_caller("hash", caller, while_ms=range(10), generation=memory.generation)
    assert memory.caller("hash", at_ms=1) == caller
