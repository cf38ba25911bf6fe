"""A move from SQLite to a real PostgreSQL: whole, killed in the middle, and refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import CountedIds, FinePictures, ManualClock
from tests.fixtures.databases import new_sqlite, opened
from tests.fixtures.users import ANN, NODE, move_in, new_dataset, train

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.context import Context
from giornata.control.jobs.submission.submit import submit
from giornata.domain.errors import InvalidInput, Unavailable
from giornata.protocol.node.work import Claim, NodeInfo
from giornata.store.database.database import Database
from giornata.store.database.dialects import parse_url, postgres, sqlite_reader
from giornata.store.database.migrate import migrate
from giornata.store.database.transfer_marks import marks
from giornata.store.schema import blobs, events, jobs, logs
from giornata.store.transfer.copy_tables import BATCH_ROWS, TABLES
from giornata.store.transfer.move_store import abandon_move, differences, digest_of, move_store

LINES, MANY_LINES = 2_500, 20_000
PATIENCE_S = 120.0


def context_over(store: Database, folder: Path, clock: ManualClock, names: int = 0) -> Context:
    blobs_ = FilesystemBlobs(folder / "blobs", signing_key=b"k" * 32, base_url="http://blobs.invalid", clock=clock)
    return Context(store=store, blobs=blobs_, clock=clock, names=CountedIds(names), pictures=FinePictures())


def add_lines(store: Database, job_id: str, numbers: range) -> None:
    lines = [
        {"job_id": job_id, "attempt_number": 1, "number": number, "line": f"line {number} ü", "at_ms": number}
        for number in numbers
    ]
    with store.begin() as tx:
        tx.connection.execute(sa.insert(logs), lines)


@pytest.fixture
def source_url(tmp_path: Path) -> str:
    """An installation with a job in flight, log lines, and JSON of all sorts."""
    url, clock = new_sqlite(tmp_path), ManualClock()
    with opened(url) as store:
        folder = FilesystemBlobs(
            tmp_path / "blobs", signing_key=b"k" * 32, base_url="http://blobs.invalid", clock=clock
        )
        ctx = Context(store=store, blobs=folder, clock=clock, names=CountedIds(), pictures=FinePictures())
        move_in(ctx)
        job, _ = submit(ctx, ANN, train(new_dataset(ctx, caption="a é 'quoted' \\ caption\n")), None)
        info = NodeInfo(node_id="node_00000001", machine_id="m-1", name="n")
        claim_once(ctx, NODE, Claim(request_id="request-1", node=info, kinds=("train",)))
        add_lines(store, job.id, range(LINES))
        with store.begin() as tx:
            tx.connection.execute(sa.update(blobs).values(inspection=sa.JSON.NULL).where(blobs.c.sha256 < "8"))
    return url


@pytest.fixture
def target_url(new_postgres: Callable[[], str]) -> str:
    """A database with all tables and no row."""
    return new_postgres()


@contextmanager
def both_of(source_url: str, target_url: str) -> Iterator[tuple[sa.Connection, sa.Connection]]:
    source, target = sqlite_reader(parse_url(source_url)), postgres(parse_url(target_url))
    with source.connect() as one, target.connect() as two:
        yield one, two
    source.dispose()
    target.dispose()


@pytest.fixture
def both(source_url: str, target_url: str) -> Iterator[tuple[sa.Connection, sa.Connection]]:
    with both_of(source_url, target_url) as connections:
        yield connections


def test_every_row_arrives_and_a_server_goes_on_in_the_target(
    source_url: str, target_url: str, both, tmp_path: Path
) -> None:
    report = move_store(source_url, target_url)
    assert list(differences(*both)) == []
    assert report.copied_rows == sum(digest_of(both[0], table).rows for table in TABLES)
    both[1].rollback()
    migrate(target_url)
    with opened(target_url) as store:
        ctx = context_over(store, tmp_path / "server", ManualClock(), names=10_000)
        with store.read() as tx:
            highest = tx.connection.scalar(sa.select(sa.func.max(events.c.id)))
        submit(ctx, ANN, train(new_dataset(ctx)), None)
        with store.read() as tx:
            new = tx.connection.scalar(sa.select(sa.func.min(events.c.id)).where(events.c.id > highest))
            assert new == highest + 1, "ids of events go on behind those that were moved"


def test_null_and_the_json_null_stay_apart(source_url: str, target_url: str, both) -> None:
    move_store(source_url, target_url)
    as_text = sa.select(sa.cast(blobs.c.inspection, sa.Text)).where(blobs.c.sha256 < "8")
    assert set(both[1].scalars(as_text)) == {"null"}
    with_null = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.joint_key.is_(None))
    assert both[1].scalar(with_null) == both[0].scalar(with_null)


def command(source_url: str, target_url: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "GIORNATA_DATABASE": target_url}
    return subprocess.Popen(
        [sys.executable, "-m", "giornata", "migrate-store", source_url, "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def copied_rows(target_url: str) -> Mapping[str, int]:
    """The rows of each table that are committed in the target; none before the move has begun."""
    engine = postgres(parse_url(target_url), pool_size=1)
    try:
        with engine.connect() as connection:
            if not sa.inspect(connection).has_table(marks.name):
                return {}
            found = connection.execute(sa.select(marks).where(marks.c.name.like("table:%")))
            return {row.name: int(json.loads(row.said)["rows"]) for row in found}
    finally:
        engine.dispose()


@pytest.mark.long
def test_a_move_that_was_killed_goes_on_behind_its_last_batch(
    source_url: str, empty_postgres: Callable[[], str]
) -> None:
    target_url = empty_postgres()
    with opened(source_url) as store:
        with store.read() as tx:
            job_id = tx.connection.scalar(sa.select(jobs.c.id))
        add_lines(store, job_id, range(LINES, MANY_LINES))
    process, deadline_s = command(source_url, target_url), time.monotonic() + PATIENCE_S
    while "table:logs" not in copied_rows(target_url):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = copied_rows(target_url)
    assert BATCH_ROWS <= before["table:logs"] < MANY_LINES, "it was killed in the middle"
    for url, words in ((source_url, "is being moved"), (target_url, "has not filled it to the end")):
        with pytest.raises(InvalidInput, match=words):
            migrate(url)

    again = command(source_url, target_url)
    said, errors = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, errors
    with both_of(source_url, target_url) as (source, target):
        assert list(differences(source, target)) == []
        rows = sum(digest_of(target, table).rows for table in TABLES)
    assert json.loads(said.splitlines()[-1])["copied_rows"] == rows - sum(before.values())
    with pytest.raises(InvalidInput, match="was moved to"):
        migrate(source_url)
    migrate(target_url)


class ProcessDeath(Exception):
    """Stands for the death of the process between two batches."""


@pytest.mark.parametrize("after_batches", [1, 8])
def test_a_move_that_stopped_between_two_batches_copies_each_row_once(
    after_batches: int, source_url: str, target_url: str, both
) -> None:
    seen: list[object] = []

    def stop(batch: object) -> None:
        seen.append(batch)
        if len(seen) == after_batches:
            raise ProcessDeath

    with pytest.raises(ProcessDeath):
        move_store(source_url, target_url, on_batch=stop)
    move_store(source_url, target_url)
    assert list(differences(*both)) == []


def test_a_move_that_has_ended_is_repeated_without_harm(source_url: str, target_url: str) -> None:
    move_store(source_url, target_url)
    assert move_store(source_url, target_url).copied_rows == 0


def test_a_server_on_the_source_refuses_the_move(source_url: str, target_url: str) -> None:
    with opened(source_url), pytest.raises(Unavailable, match="in use by another server"):
        move_store(source_url, target_url)


def test_a_target_with_an_installation_is_refused_and_the_source_stays_good(
    source_url: str, new_postgres: Callable[[], str]
) -> None:
    target_url = new_postgres()
    with opened(target_url) as store, store.begin() as tx:
        tx.projects.install(signing_key="t" * 40, at_ms=1)
    with pytest.raises(InvalidInput, match="holds an installation: there are rows in installation"):
        move_store(source_url, target_url)
    migrate(source_url)


def test_a_target_with_tables_of_something_else_is_refused(source_url: str, target_url: str) -> None:
    engine = postgres(parse_url(target_url), pool_size=1)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE invoices (id integer)"))
    engine.dispose()
    with pytest.raises(InvalidInput, match="tables of something else: invoices"):
        move_store(source_url, target_url)


def test_a_target_that_another_source_fills_is_refused(source_url: str, target_url: str, tmp_path: Path) -> None:
    def stop(_batch: object) -> None:
        raise ProcessDeath

    with pytest.raises(ProcessDeath):
        move_store(source_url, target_url, on_batch=stop)
    other = tmp_path / "other"
    other.mkdir()
    other_url = new_sqlite(other)
    with opened(other_url) as store, store.begin() as tx:
        tx.projects.install(signing_key="o" * 40, at_ms=2)
    with pytest.raises(InvalidInput, match="another installation is being moved into it"):
        move_store(other_url, target_url)


def test_a_row_that_changed_in_the_target_is_found_at_the_end(source_url: str, target_url: str) -> None:
    def stop_after_logs(batch: object) -> None:
        if batch.table == "logs" and batch.rows == LINES:
            raise ProcessDeath

    with pytest.raises(ProcessDeath):
        move_store(source_url, target_url, on_batch=stop_after_logs)
    engine = postgres(parse_url(target_url), pool_size=1)
    with engine.begin() as connection:
        connection.execute(sa.update(logs).where(logs.c.number == 17).values(line="another line"))
    engine.dispose()
    with pytest.raises(InvalidInput, match=r"table logs: .* or other values"):
        move_store(source_url, target_url)
    with pytest.raises(InvalidInput, match="has not filled it"):
        migrate(target_url)


def test_a_row_that_postgresql_cannot_hold_is_named_by_its_table(source_url: str, target_url: str) -> None:
    with opened(source_url) as store, store.begin() as tx:
        tx.connection.execute(sa.update(logs).where(logs.c.number == 3).values(line="a\x00b"))
    with pytest.raises(InvalidInput, match="table logs: "):
        move_store(source_url, target_url)


def test_a_move_that_was_given_up_leaves_the_source_as_good_as_before(source_url: str, target_url: str) -> None:
    def stop(_batch: object) -> None:
        raise ProcessDeath

    with pytest.raises(ProcessDeath):
        move_store(source_url, target_url, on_batch=stop)
    assert abandon_move(source_url)
    migrate(source_url)
    assert not abandon_move(source_url)
