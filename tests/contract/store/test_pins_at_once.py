"""Pins of checkpoints that come while something takes the checkpoint: on PostgreSQL, where both can be under way."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from tests.contract.store.test_deletion import count, ended_job
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import ANN, ANN_ADMIN, move_in

from giornata.control.context import Context
from giornata.control.end_of_life.apply_retention import apply_retention
from giornata.control.end_of_life.pins import set_pin
from giornata.control.end_of_life.retention import set_retention
from giornata.control.ports.user_queries.end_of_life_store import PinRecord
from giornata.domain.errors import NotFound
from giornata.protocol.project.end_of_life import SetRetention
from giornata.store.database.database import Database
from giornata.store.schema import checkpoints

DAY_S = 86_400
WAITING = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")


@pytest.fixture
def database_url(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture
def job_id(ctx: Context) -> str:
    """An ended job with a checkpoint of step 5."""
    move_in(ctx)
    return ended_job(ctx)[0]


def comes_to_a_lock(work: Future[object], store: Database) -> None:
    """Return when the work waits for a lock, or has not waited for any."""
    while not work.done():
        with store.read() as tx:
            if tx.connection.scalar(WAITING):
                return


def test_checkpoint_pinned_while_its_job_is_deleted_is_not_found(ctx: Context, store: Database, job_id: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        with store.begin() as tx:
            tx.jobs.lock(job_id)
            assert tx.deletions.pinned_of_job(job_id) == []
            pin = pool.submit(set_pin, ctx, ANN, f"{job_id}@5", pinned=True)
            comes_to_a_lock(pin, store)
            tx.deletions.empty_job(job_id, at_ms=ctx.clock.now_ms())
        with pytest.raises(NotFound):
            pin.result()


def test_checkpoint_pinned_while_retention_waits_for_its_row_stays(
    ctx: Context, store: Database, clock: ManualClock, job_id: str
) -> None:
    set_retention(ctx, ANN_ADMIN, "ann", SetRetention(checkpoints=1))
    clock.advance_s(2 * DAY_S)
    with ThreadPoolExecutor(1) as pool:
        with store.begin() as tx:
            assert tx.pins.set(PinRecord(target_id=job_id, step=5), project_id="ann", pinned=True)
            retention = pool.submit(apply_retention, ctx)
            comes_to_a_lock(retention, store)
        assert not retention.result()
    assert count(store, checkpoints, checkpoints.c.pinned) == 1
