"""With 20,000 pictures in the queue a claim of pictures reads heads of indexes, and sorts no table."""

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa
from tests.fixtures.databases import migrated_for_a_file
from tests.fixtures.plans import NUMBERS, plan, rows_read

from giornata.control.ports.node_queries.picture_store import PicturesWanted
from giornata.store.database.database import Database, open_store
from giornata.store.database.transaction import Transaction
from giornata.store.pictures.picture_claiming import first_statement, picture_query, take_statement
from giornata.store.pictures.picture_gauges import OPEN_PICTURES
from giornata.store.pictures.picture_lease_ends import give_back_statement
from giornata.store.pictures.picture_leases import _OF_LIVE_LEASE
from giornata.store.pictures.routing_queries import base_queues_statement

PICTURES = 20_000
BASES = 20
FILL = """
INSERT INTO pictures (order_id, number, project_id, state, batch_key, base_key, turn, priority, seed, differs,
                      pixel_steps, together)
SELECT 'job_' || (n / 100), n % 100, 'default', 'queued', 'batch-' || (n % 40), 'base-' || (n % 20), n, n % 3, n,
       '{{}}', 1, 64
FROM {numbers}
"""
FILL_PROJECTS = "INSERT INTO projects (id, name, created_at_ms) VALUES ('default', 'default', 0)"
# A hundredth of the orders is open.
FILL_JOBS = """
INSERT INTO jobs (id, project_id, kind, name, state, spec, priority, labels, faults, result, created_at_ms)
SELECT 'job_' || n, 'default', 'generate', 'load', 'queued', '{{}}', 0, '{{}}', '[]', '{{}}', n FROM {numbers}
"""
FILL_ORDERS = """
INSERT INTO picture_orders (order_id, project_id, priority, pictures, ended, told_at_ms, ends_turn, is_open)
SELECT 'job_' || n, 'default', 0, 100, 0, 0, n, n % 100 = 0 FROM {numbers}
"""
ORDERS = 5_000
# The few rows that a head or a lease has may be sorted.
WHOLE = re.compile(r"SCAN pictures(?! USING (COVERING )?INDEX)|Seq Scan pictures")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with migrated_for_a_file(request, tmp_path_factory) as url, closing(open_store(url)) as database:
        numbers = NUMBERS[database.dialect_name].format(most=PICTURES)
        with database.begin() as tx:
            tx.connection.execute(sa.text(FILL.format(numbers=numbers)))
            numbers = NUMBERS[database.dialect_name].format(most=ORDERS)
            for statement in (FILL_PROJECTS, FILL_JOBS, FILL_ORDERS):
                tx.connection.execute(sa.text(statement.format(numbers=numbers)))
            if database.dialect_name == "postgresql":  # which does it by itself in time
                tx.connection.exec_driver_sql("ANALYZE")
        yield database


def wanted(*, batch_key: str | None = None, project_id: str | None = None) -> PicturesWanted:
    return PicturesWanted(
        most=16,
        bases=("base-1", "base-2"),
        machine_id="machine-1",
        project_id=project_id,
        vram_bytes=None,
        batch_key=batch_key,
        failed_since_ms=0,
    )


@pytest.mark.parametrize("conditions", [wanted(), wanted(batch_key="batch-1"), wanted(project_id="default")])
def test_a_claim_reads_heads_of_indexes(full: Database, conditions: PicturesWanted) -> None:
    key, _ = picture_query(conditions)
    for statement in (take_statement(key), first_statement(key)):
        steps = plan(full, statement)
        assert not WHOLE.search(steps), steps
        assert "ix_pictures_queue" in steps, steps


def test_distinct_bases_are_found_by_probes_of_an_index(full: Database) -> None:
    steps = plan(full, base_queues_statement(one_project=False))
    assert not WHOLE.search(steps), steps
    assert "ix_pictures_queue_base" in steps, steps


def test_pictures_of_a_lease_are_found_by_their_index(full: Database) -> None:
    for statement in (_OF_LIVE_LEASE, give_back_statement(full.dialect_name)):
        steps = plan(full, statement)
        assert "ix_pictures_lease" in steps, steps
        assert not WHOLE.search(steps), steps


def test_gauges_read_open_orders_and_live_leases_and_no_queue(full: Database) -> None:
    steps = plan(full, OPEN_PICTURES)
    assert "ix_pictures_lease" in steps, steps
    assert "ix_picture_orders_open" in steps, steps
    assert not WHOLE.search(steps), steps


def claim_of_pictures(tx: Transaction) -> None:
    """What a claim asks of the queue: the distinct bases, and sixteen pictures of one of them."""
    assert len(tx.routing.base_queues(project_id=None)) == BASES
    assert len(tx.picture_leases.take(wanted(), lease="att_1")) == 16


def test_claim_reads_as_many_rows_of_a_queue_ten_times_as_deep(full: Database) -> None:
    if full.dialect_name == "sqlite":
        pytest.skip("it does not say how many rows a statement reads")
    with full.begin() as tx:  # the order of the first hundred pictures
        for statement in (FILL_JOBS, FILL_ORDERS):
            tx.connection.execute(sa.text(statement.format(numbers="generate_series(0, 0) n")))
    shallow = rows_read(full, claim_of_pictures)
    behind = f"generate_series({PICTURES + 1}::bigint, {10 * PICTURES}) n"
    with full.begin() as tx:
        tx.connection.execute(sa.text(FILL.format(numbers=behind)))
        tx.connection.exec_driver_sql("ANALYZE pictures")
    deep = rows_read(full, claim_of_pictures)
    assert len(deep) == 2
    assert all(count > 0 for count in deep)
    assert deep == shallow
