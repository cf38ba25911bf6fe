"""The statements of a lease are compiled once: compiling one takes more processor time than the database needs."""

from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.sql.compiler import SQLCompiler
from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.pictures.settle_order import settle_orders
from giornata.protocol.node.work import CompleteAttempt, Heartbeat


@contextmanager
def compiled() -> Iterator[Set[str]]:
    """The statements that are compiled meanwhile: those that SQLAlchemy has not kept from an earlier run."""
    found: set[str] = set()

    def note(_connection: Any, _cursor: Any, statement: str, _values: Any, context: Any, _many: bool) -> None:
        is_built = context is not None and isinstance(context.compiled, SQLCompiler)
        if is_built and context.cache_hit is not sa.engine.interfaces.CacheStats.CACHE_HIT:
            found.add(statement)

    sa.event.listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(Engine, "before_cursor_execute", note)


def life_of_pictures(rig: StoreRig, picture_rig: PictureRig) -> None:
    picture_rig.order(4)
    lease = picture_rig.lease(1, most=4)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat())
    done = [picture_rig.upload(lease, each) for each in lease.pictures]
    picture_rig.report(lease, done, complete=True)
    rig.clock.advance_s(2)
    settle_orders(rig.ctx)


def life_of_a_job(rig: StoreRig, _: PictureRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1))
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=2))


@pytest.mark.parametrize("life", [life_of_pictures, life_of_a_job])
def test_a_later_life_compiles_no_statement(rig: StoreRig, life: Any) -> None:
    picture_rig = PictureRig(rig)
    for _ in range(4):  # what is remembered for seconds is asked for again in the third, of the other connection
        life(rig, picture_rig)
    with compiled() as found:
        life(rig, picture_rig)
    assert not found
