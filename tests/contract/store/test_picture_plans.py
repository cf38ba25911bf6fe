"""With 20,000 pictures in the queue a claim of pictures reads heads of indexes, and sorts no table."""

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa
from tests.fixtures.databases import migrated_for_a_file
from tests.fixtures.plans import NUMBERS, plan

from giornata.control.ports.picture_store import PicturesWanted
from giornata.store.database import Database, open_store
from giornata.store.picture_claiming import first_statement, picture_query, take_statement
from giornata.store.picture_lease_ends import give_back_statement
from giornata.store.picture_leases import _OF_LIVE_LEASE

PICTURES = 20_000
FILL = """
INSERT INTO pictures (order_id, number, project_id, state, batch_key, base_key, turn, priority, seed, differs,
                      pixel_steps, together)
SELECT 'job_' || (n / 100), n % 100, 'default', 'queued', 'batch-' || (n % 40), 'base-' || (n % 20), n, n % 3, n,
       '{{}}', 1, 64
FROM {numbers}
"""
# The few rows that a head or a lease has may be sorted.
WHOLE = re.compile(r"SCAN pictures(?! USING (COVERING )?INDEX)|Seq Scan pictures")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with migrated_for_a_file(request, tmp_path_factory) as url, closing(open_store(url)) as database:
        numbers = NUMBERS[database.dialect_name].format(most=PICTURES)
        with database.begin() as tx:
            tx.connection.execute(sa.text(FILL.format(numbers=numbers)))
            if database.dialect_name == "postgresql":  # which does it by itself in time
                tx.connection.exec_driver_sql("ANALYZE")
        yield database


def wanted(*, batch_key: str | None = None, project_id: str | None = None) -> PicturesWanted:
    return PicturesWanted(
        most=16,
        held_bases=("0" * 32, "1" * 32),
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


def test_pictures_of_a_lease_are_found_by_their_index(full: Database) -> None:
    for statement in (_OF_LIVE_LEASE, give_back_statement(full.dialect_name)):
        steps = plan(full, statement)
        assert "ix_pictures_lease" in steps, steps
        assert not WHOLE.search(steps), steps
