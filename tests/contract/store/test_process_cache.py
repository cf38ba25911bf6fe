"""What a server remembers between requests is bounded in age, and never outlives what it was told itself."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import ANN_ADMIN, move_in

from giornata.control.access.authenticate import KEPT_MS, authenticate, remembered
from giornata.control.access.keys import create_key, revoke_key
from giornata.control.context import Context
from giornata.control.memory.process_cache import ProcessCache
from giornata.domain.billing.money import cost_micro_usd
from giornata.domain.errors import Unauthenticated
from giornata.protocol.project.admin import CreateKey
from giornata.store.database.database import Database
from giornata.store.money.ledger import amount_micro_usd


def another_server(ctx: Context) -> Context:
    """On the same database, with a memory of its own."""
    return replace(ctx, memory=ProcessCache())


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


def test_caller_read_before_a_revocation_is_not_cached_after_it(ctx: Context) -> None:
    caller = ANN_ADMIN
    memory = ProcessCache()
    before = memory.generation
    memory.forget_callers()
    memory.remember_caller("hash", caller, while_ms=range(10), generation=before)
    assert memory.caller("hash", at_ms=1) is None
    memory.remember_caller("hash", caller, while_ms=range(10), generation=memory.generation)
    assert memory.caller("hash", at_ms=1) == caller


@pytest.mark.parametrize("price", [0, 1, 249_999, 10**6, 10**9])
@pytest.mark.parametrize("billed_ms", [0, 1, 1_799_999, 1_800_000, 3_600_000, 90_061_001, 10**11])
def test_the_database_bills_as_the_domain_does(store: Database, price: int, billed_ms: int) -> None:
    values = [sa.literal(value, sa.BigInteger) for value in (price, billed_ms)]
    with store.read() as tx:
        amount = tx.connection.scalar(sa.select(amount_micro_usd(*values)))
    assert amount == cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=billed_ms)
