"""What migrations lock on PostgreSQL while servers of the version before hand out work.

No clock is looked at: a lock that stops claims may be held for a moment, but not while the rows of a large table are
read or written. How many rows there are then does not matter; `make long` sees the same with a million.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory
from benchmarks.rig.filled_tables import FIRST, GROWING, config_on, fill_revision

from giornata.domain.errors import InvalidInput
from giornata.store.database import migrate as migrating
from giornata.store.database.dialects import parse_url, postgres
from giornata.store.database.migrate import is_current, migrate, revision_of, serves

# What an operator or a person makes by hand: thousands of rows at most.
SMALL = frozenset(
    {
        *("alembic_version", "failed_sign_ins", "fleets", "installation", "invitations", "keys", "memberships"),
        *("models", "project_secrets", "projects", "sessions", "users", "webhook_cursor", "webhooks"),
        *("fleet_prices", "fleet_time", "request_counts"),
    }
)
NOTHING: Mapping[str, Sequence[str]] = MappingProxyType({})
# Each of these stops an INSERT or UPDATE, or even a SELECT, of others.
STOPS_CLAIMS = {"AccessExclusiveLock", "ExclusiveLock", "ShareRowExclusiveLock", "ShareLock"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFault:
    """A lock that is held while the rows of its table are worked through."""

    table: str
    mode: str
    why: str


@pytest.fixture
def filled(empty_postgres: Callable[[], str]) -> Callable[[int], sa.Engine]:
    """Makes a database of revision FIRST with so many rows in each table that grows."""

    def make(rows: int, tables: tuple[str, ...] | None = None) -> sa.Engine:
        engine = postgres(parse_url(empty_postgres()), pool_size=2)
        with engine.begin() as connection:
            fill_revision(connection, rows, tables=tables, small=SMALL)
        return engine

    return make


def files_of(connection: sa.Connection) -> dict[str, sa.Row[tuple[object, ...]]]:
    """The file and the number of rows of each table."""
    return {row.relname: row for row in connection.execute(FILES)}


def faults_since(before: Mapping[str, sa.Row[tuple[object, ...]]], connection: sa.Connection) -> list[LockFault]:
    """What is wrong with the locks of the connection's transaction, which began with these files."""
    faults: list[LockFault] = []
    read = {row.relname: row.rows for row in connection.execute(ROWS_TOUCHED)}
    now = files_of(connection)
    for table, mode in connection.execute(LOCKS):
        if table not in before or table in SMALL or mode not in STOPS_CLAIMS:
            continue
        if table in now and now[table].file != before[table].file:
            faults.append(LockFault(table=table, mode=mode, why="the table is written anew"))
        elif read.get(table, 0) >= max(before[table].rows, 1):
            faults.append(LockFault(table=table, mode=mode, why="all rows are read or written"))
    return faults


FILES = sa.text(
    "SELECT relname, pg_relation_filenode(oid) AS file, reltuples AS rows FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
)
ROWS_TOUCHED = sa.text("SELECT relname, seq_tup_read + n_tup_upd + n_tup_del AS rows FROM pg_stat_xact_user_tables")
LOCKS = sa.text(
    "SELECT c.relname, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation "
    "WHERE l.pid = pg_backend_pid() AND l.granted AND c.relkind = 'r'"
)


def later_revisions() -> list[str]:
    scripts = ScriptDirectory.from_config(migrating._config())
    return [script.revision for script in scripts.iterate_revisions("head", FIRST)][::-1]


def faults_of_migrations(engine: sa.Engine) -> dict[str, list[LockFault]]:
    """The faults of each migration, looked at before its transaction commits.

    A migration that commits in between shows its last part only, so it should do nothing but build indexes.
    """
    found: dict[str, list[LockFault]] = {}
    with engine.connect() as connection:
        for revision in later_revisions():
            before = files_of(connection)
            # Rows that were touched before would count as touched by this migration until the counts are flushed.
            connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
            connection.commit()
            config = config_on(connection)
            config.attributes["on_version_apply"] = lambda revision=revision, before=before, **_: found.update(
                {revision: faults_since(before, connection)}
            )
            command.upgrade(config, revision)
        assert found.keys() == set(later_revisions())
        assert is_current(connection)
    return {revision: faults for revision, faults in found.items() if faults}


def test_no_migration_works_through_a_large_table_while_it_holds_up_claims(
    filled: Callable[..., sa.Engine],
) -> None:
    assert len(later_revisions()) >= 4
    assert faults_of_migrations(filled(50)) == {}


@pytest.mark.long
def test_no_migration_works_through_a_million_rows_while_it_holds_up_claims(
    filled: Callable[..., sa.Engine],
) -> None:
    assert faults_of_migrations(filled(1_000_000, GROWING)) == {}


def locking_orders(engine: sa.Engine) -> dict[str, list[str]]:
    """The tables that each migration locks against claims, in the order in which it does."""
    found: dict[str, list[str]] = {}
    with engine.connect() as connection:
        there = set(files_of(connection))
        connection.commit()
        looking = False

        def look(*_: object) -> None:
            nonlocal looking
            if looking or connection.get_isolation_level() == "AUTOCOMMIT":
                return
            looking = True
            locked = {table for table, mode in connection.execute(LOCKS) if mode in STOPS_CLAIMS and table in there}
            looking = False
            order = found[revision]
            order += sorted(locked - set(order))

        sa.event.listen(connection, "after_cursor_execute", look)
        for revision in later_revisions():
            found[revision] = []
            command.upgrade(config_on(connection), revision)
        sa.event.remove(connection, "after_cursor_execute", look)
    return found


def test_migration_locks_jobs_first_and_projects_last_as_requests_do(filled: Callable[..., sa.Engine]) -> None:
    """In another order a request and the migration wait for each other, and the migration gives way for ever."""
    orders = locking_orders(filled(1))
    assert any(orders.values())
    for revision, order in orders.items():
        assert "jobs" not in order[1:], revision
        assert "projects" not in order[:-1], revision


# Columns that are added at the end, in the order of databases that were upgraded before these migrations were mended.
ADDED = {
    "0022": {"jobs": ["created_by"], "datasets": ["created_by"], "models": ["created_by"]},
    "0028": {
        "jobs": ["deleted_at_ms", "pinned"],
        "datasets": ["pinned"],
        "checkpoints": ["pinned"],
        "projects": ["retention", "deleted_at_ms"],
    },
}


@pytest.mark.parametrize("revision", sorted(ADDED))
def test_migration_waits_for_a_claim_that_then_locks_its_project(
    revision: str, filled: Callable[..., sa.Engine]
) -> None:
    engine = filled(5)
    with engine.begin() as connection:
        command.upgrade(config_on(connection), f"{int(revision) - 1:04}")
        before = rows_of(connection, ADDED[revision])

    def upgrade() -> None:
        with engine.begin() as connection:
            command.upgrade(config_on(connection), revision)

    migration = threading.Thread(target=upgrade)
    with engine.connect() as claim:
        claim.execute(sa.text("UPDATE jobs SET state = 'running' WHERE id = '1'"))
        migration.start()
        until(lambda: waits_for_a_lock(claim))
        claim.execute(sa.text("SET LOCAL lock_timeout = '10s'"))
        claim.execute(sa.text("LOCK TABLE projects IN ROW EXCLUSIVE MODE"))  # as an UPDATE does
        claim.rollback()
    migration.join()
    with engine.connect() as connection:
        assert revision_of(connection) == revision
        assert rows_of(connection, ADDED[revision], without=ADDED[revision]) == before
        for table, added in ADDED[revision].items():
            assert columns_of(connection, table)[-len(added) :] == added
    engine.dispose()


def columns_of(connection: sa.Connection, table: str) -> list[str]:
    return [column["name"] for column in sa.inspect(connection).get_columns(table)]


def rows_of(
    connection: sa.Connection, tables: Iterable[str], *, without: Mapping[str, Sequence[str]] = NOTHING
) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the tables, but for these columns."""
    found = {}
    for table in tables:
        names = [name for name in columns_of(connection, table) if name not in without.get(table, ())]
        rows = connection.execute(sa.select(*map(sa.column, names)).select_from(sa.table(table)))
        found[table] = sorted(map(tuple, rows), key=str)
    return found


@pytest.mark.parametrize(
    ("statements", "table", "mode"),
    [
        (["CREATE INDEX ix_new ON events (at_ms)"], "events", "ShareLock"),
        (["ALTER TABLE jobs ALTER COLUMN name TYPE varchar(7)"], "jobs", "AccessExclusiveLock"),
        (["ALTER TABLE jobs ADD COLUMN drawn float DEFAULT random()"], "jobs", "AccessExclusiveLock"),
        (["ALTER TABLE jobs ADD COLUMN hue text", "UPDATE jobs SET hue = 'red'"], "jobs", "AccessExclusiveLock"),
        (["ALTER TABLE jobs ALTER COLUMN error SET NOT NULL"], "jobs", "AccessExclusiveLock"),
        (["LOCK TABLE attempts IN EXCLUSIVE MODE", "SELECT count(*) FROM attempts"], "attempts", "ExclusiveLock"),
    ],
)
def test_statement_that_holds_up_claims_is_found(
    filled: Callable[..., sa.Engine], statements: list[str], table: str, mode: str
) -> None:
    with filled(50).begin() as connection:
        before = files_of(connection)
        for statement in statements:
            connection.execute(sa.text(statement))
        faults = faults_since(before, connection)
    assert (table, mode) in {(fault.table, fault.mode) for fault in faults}


def waits_for_a_lock(connection: sa.Connection) -> bool:
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'")
    return bool(connection.scalar(waiting))


def test_migration_waits_for_its_lock_in_short_tries_between_which_others_pass(
    empty_postgres: Callable[[], str],
) -> None:
    url = empty_postgres()
    engine = postgres(parse_url(url), pool_size=3)
    with engine.begin() as connection:
        command.upgrade(config_on(connection), FIRST)
    worker = threading.Thread(target=migrate, args=(url,))
    with engine.connect() as slow, engine.connect().execution_options(isolation_level="AUTOCOMMIT") as others:
        slow.execute(sa.text("SELECT count(*) FROM jobs"))  # held to the end of its transaction
        worker.start()
        for expected in (True, False):
            until(lambda expected=expected: waits_for_a_lock(others) is expected)
        others.execute(sa.text("SELECT count(*) FROM jobs"))
        assert worker.is_alive(), "the migration tries again"
        slow.rollback()
        worker.join()
        assert is_current(others)
    engine.dispose()


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        pass


def test_database_of_a_later_version_is_served_and_started_by_that_version_only(
    empty_postgres: Callable[[], str],
) -> None:
    url = empty_postgres()
    migrate(url)
    engine = postgres(parse_url(url), pool_size=1)
    with engine.begin() as connection:
        assert serves(connection)
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        assert serves(connection), "a server that runs already goes on while a later one joins it"
    with pytest.raises(InvalidInput, match=r"revision 9999, of a later version .*start that version"):
        migrate(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :first"), {"first": FIRST})
        assert not serves(connection)
        assert revision_of(connection) == FIRST
    engine.dispose()
