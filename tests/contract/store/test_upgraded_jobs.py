"""A job that waits in a database of revision 0008 is claimed and finished after the upgrade."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from benchmarks.rig.filled_tables import config_on
from tests.fixtures.contexts import CountedIds, FinePictures, ManualClock, PlainPasswords
from tests.fixtures.databases import opened
from tests.fixtures.store_rig import StoreRig

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.control.attempts.commit import commit_artifact
from giornata.control.attempts.ending.complete import complete
from giornata.control.context import Context
from giornata.protocol.node.work import CommitArtifact, CompleteAttempt
from giornata.store import schema
from giornata.store.database.dialects import parse_url, postgres
from giornata.store.database.migrate import migrate

OLD = Path(__file__).parents[2] / "fixtures" / "database_0008.sql"
REVISION = "0008"
QUEUED, OWNER, STEPS = "job_000000023", "project-1", 10
LAST_MS = 1_790_002_055_000
"""When the newest job of that database was submitted."""


def old_sqlite(folder: Path) -> str:
    path = folder / "giornata.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(OLD.read_text(encoding="utf-8"))
    return f"sqlite:///{path}"


def old_postgres(url: str, sqlite_url: str) -> str:
    """Make the schema of the old revision, and copy the rows of the SQLite database into it."""
    source, target = sa.create_engine(sqlite_url), postgres(parse_url(url), pool_size=1)
    with source.connect() as rows, target.begin() as connection:
        command.upgrade(config_on(connection), REVISION)
        known = sa.MetaData()
        known.reflect(connection)
        written = sa.MetaData()
        written.reflect(rows)
        for table in known.sorted_tables:
            if table.name == "alembic_version":
                continue
            found = [dict(row._mapping) for row in rows.execute(sa.select(written.tables[table.name]))]
            if found:
                connection.execute(sa.insert(table), found)
            if "id" in table.c and isinstance(table.c.id.type, sa.BigInteger) and found:
                highest = max(row["id"] for row in found)
                sequence = sa.func.pg_get_serial_sequence(table.name, "id")
                connection.execute(sa.select(sa.func.setval(sequence, highest)))
    source.dispose()
    target.dispose()
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def upgraded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreRig]:
    """The use cases on the old database, upgraded, some time after its last row was written."""
    url = old_sqlite(tmp_path)
    if request.param == "postgresql":
        make: Callable[[], str] = request.getfixturevalue("empty_postgres")
        url = old_postgres(make(), url)
    migrate(url)
    clock = ManualClock(LAST_MS + 60_000)
    blobs = FilesystemBlobs(tmp_path / "blobs", signing_key=b"k" * 32, base_url="http://blobs.invalid", clock=clock)
    with opened(url) as store:
        ctx = Context(
            store=store,
            blobs=blobs,
            clock=clock,
            names=CountedIds(),
            pictures=FinePictures(),
            passwords=PlainPasswords(),
        )
        yield StoreRig(ctx, store, clock)


def test_queued_job_of_revision_0008_is_claimed_with_its_spec_and_pictures(upgraded: StoreRig) -> None:
    before = upgraded.job(QUEUED)
    lease = upgraded.lease(7)
    assert lease.job_id == QUEUED
    assert (before["state"], upgraded.job(QUEUED)["state"]) == ("queued", "running")
    assert before["spec"].items() <= lease.spec.items()
    assert len(lease.inputs) == 8
    assert upgraded.events(QUEUED)[-1] == "attempt.started"


def test_queued_job_of_revision_0008_succeeds_when_its_node_completes_it(upgraded: StoreRig) -> None:
    lease = upgraded.lease(7)
    upgraded.clock.advance_s(36)
    upgraded.checkpoint(lease, STEPS, project_id=OWNER)
    blob = upgraded.add_blob(b"weights", project_id=OWNER)
    artifact = CommitArtifact(name="lora.safetensors", sha256=blob.sha256, size_bytes=blob.size_bytes)
    commit_artifact(upgraded.ctx, lease.attempt_id, artifact)
    complete(upgraded.ctx, lease.attempt_id, CompleteAttempt(step=STEPS))
    job = upgraded.job(QUEUED)
    assert (job["state"], job["step"], job["committed_step"], job["attempt_count"]) == ("succeeded", STEPS, STEPS, 1)
    assert upgraded.events(QUEUED)[-1] == "job.succeeded"
    (bill,) = upgraded.rows(schema.ledger, attempt_id=lease.attempt_id)
    assert (bill["project_id"], bill["amount_micro_usd"]) == (OWNER, 3600)
