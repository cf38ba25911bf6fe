"""A curve of a long job: few points, the last one always, and few rows read for them."""

from collections.abc import Iterator

import pytest
from tests.fixtures.rows_read import rows_read, sent_statements
from tests.fixtures.users import ANN, claim, move_in, new_job

from giornata.control.context import Context
from giornata.control.jobs.reading.read_curve import read_curve
from giornata.domain.errors import InvalidInput
from giornata.store import schema
from giornata.store.database.database import Database

STEPS, RARE_EVERY = 20_000, 333


@pytest.fixture
def job_id(ctx: Context, store: Database) -> Iterator[str]:
    """A job with a value of each step, and the loss on held-out pictures of some."""
    move_in(ctx)
    held_out = {"validation_split": 0.25, "validate_every_n_steps": RARE_EVERY}
    job = new_job(ctx, max_train_steps=STEPS, **held_out)
    claim(ctx)
    rows = [
        {"step": step, "values": {"loss": 1 / step} | ({"validation_loss": 0.5} if step % RARE_EVERY == 0 else {})}
        for step in range(1, STEPS + 1)
    ]
    with store.begin() as tx:
        common = {"job_id": job.id, "attempt_number": 1, "at_ms": 1}
        tx.connection.execute(schema.metrics.insert(), [row | common for row in rows])
    yield job.id


def test_curve_of_a_long_job_ends_with_its_last_step_and_reads_few_rows(
    ctx: Context, store: Database, job_id: str
) -> None:
    with sent_statements() as sent:
        found = read_curve(ctx, ANN, job_id, after_step=-1, points=200)
    steps = [each.step for each in found.items]
    assert (steps[0], steps[-1], found.next) == (1, STEPS, None)
    assert 66 < len(steps) <= 200
    assert steps == sorted(set(steps))
    assert found.every == 200
    assert [each.values["loss"] for each in found.items] == [1 / step for step in steps]
    assert sum("validation_loss" in each.values for each in found.items) > 20
    if store.dialect_name == "postgresql":
        assert sum(rows for rows, _ in rows_read(store, sent)) < 1500


def test_curve_goes_on_behind_a_step_and_is_empty_behind_the_last(ctx: Context, job_id: str) -> None:
    later = read_curve(ctx, ANN, job_id, after_step=STEPS - 50, points=200)
    assert [each.step for each in later.items] == list(range(STEPS - 49, STEPS + 1))
    assert later.every == 1
    assert read_curve(ctx, ANN, job_id, after_step=STEPS, points=200).items == ()


def test_steps_without_values_give_those_of_the_next_step_that_has_some(
    ctx: Context, store: Database, job_id: str
) -> None:
    metrics = schema.metrics
    with store.begin() as tx:
        tx.connection.execute(metrics.delete().where(metrics.c.step % 7 != 3))
    found = read_curve(ctx, ANN, job_id, after_step=-1, points=200)
    steps = [each.step for each in found.items]
    assert all(step % 7 == 3 for step in steps)
    assert steps == sorted(set(steps))
    assert steps[-1] == max(range(3, STEPS + 1, 7))
    assert len(steps) > 66


@pytest.mark.parametrize("points", [9, 2001])
def test_curve_of_absurdly_many_points_is_refused(ctx: Context, job_id: str, points: int) -> None:
    with pytest.raises(InvalidInput, match="points"):
        read_curve(ctx, ANN, job_id, after_step=-1, points=points)
