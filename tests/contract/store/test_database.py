"""Transactions, migrations, one process, fair writers."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from giornata.domain.errors import InvalidInput, Unavailable
from giornata.store.database.database import Database, open_store
from giornata.store.database.dialects import parse_url, postgres
from giornata.store.database.migrate import is_current, migrate
from giornata.store.database.sqlite_file import FairLock
from giornata.store.schema import metadata, projects

PROJECT = {"id": "p", "name": "p", "created_at_ms": 1}


def add_project(store: Database) -> None:
    with store.begin() as tx:
        tx.connection.execute(sa.insert(projects).values(PROJECT))


def count(store: Database) -> int:
    with store.read() as tx:
        return tx.connection.scalar(sa.select(sa.func.count()).select_from(projects)) or 0


def test_committed_transaction_is_read_and_failed_one_is_rolled_back(store: Database) -> None:
    add_project(store)
    with pytest.raises(RuntimeError), store.begin() as tx:
        tx.connection.execute(sa.delete(projects))
        raise RuntimeError
    assert count(store) == 1


def test_a_read_transaction_cannot_write(store: Database) -> None:
    with pytest.raises(Exception, match=r"(?i)read-?only"), store.read() as tx:
        tx.connection.execute(sa.insert(projects).values(PROJECT))
    assert count(store) == 0


def test_a_read_is_one_snapshot_and_a_write_does_not_wait_for_it(store: Database) -> None:
    with store.read() as tx:
        statement = sa.select(sa.func.count()).select_from(projects)
        assert tx.connection.scalar(statement) == 0
        writer = threading.Thread(target=add_project, args=(store,))
        writer.start()
        writer.join(timeout=20)
        assert not writer.is_alive()
        assert tx.connection.scalar(statement) == 0
    assert count(store) == 1


def test_foreign_keys_are_enforced(store: Database) -> None:
    with pytest.raises(sa.exc.IntegrityError), store.begin() as tx:
        tx.connection.exec_driver_sql(
            "INSERT INTO keys (id, project_id, scope, name, prefix, secret_sha256, created_at_ms)"
            " VALUES ('k', 'nobody', 'node', 'n', 'x', 'y', 1)"
        )


def test_the_migrations_make_the_schema_and_may_be_repeated(store: Database, database_url: str) -> None:
    with store.read() as tx:
        assert is_current(tx.connection)
    store.close()
    migrate(database_url)


def shape(connection: sa.Connection) -> dict[str, object]:
    """Every table, and every index as the database writes it down (expressions and conditions too)."""
    seen = sa.inspect(connection)
    query = (
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        if connection.dialect.name == "sqlite"
        else "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
    )
    indexes = {name: " ".join(sql.split()) for name, sql in connection.exec_driver_sql(query)}
    tables: dict[str, object] = {}
    for table in set(seen.get_table_names()) - {"alembic_version"}:
        columns = {
            column["name"]: (repr(column["type"]), column["nullable"], column["default"])
            for column in seen.get_columns(table)
        }
        keys = [key | {"options": None} for key in seen.get_foreign_keys(table)]
        unique = sorted(map(repr, seen.get_unique_constraints(table)))
        tables[table] = (columns, repr(seen.get_pk_constraint(table)), sorted(map(repr, keys)), unique)
    return tables | {name: sql for name, sql in indexes.items() if "alembic" not in name}


def test_the_migrated_database_equals_the_schema(
    store: Database, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with store.read() as tx:
        migrated = shape(tx.connection)
    if store.dialect_name == "sqlite":
        engine = sa.create_engine(f"sqlite:///{tmp_path}/made.db")
    else:
        make: Callable[[], str] = request.getfixturevalue("empty_postgres")
        engine = sa.create_engine(sa.make_url(make()).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        metadata.create_all(connection)
        assert migrated == shape(connection)
    engine.dispose()


def test_a_second_server_on_the_same_file_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    migrate(url)
    first = open_store(url)
    with pytest.raises(Unavailable, match="in use by another server"):
        open_store(url)
    with pytest.raises(Unavailable, match="in use by another server"):
        migrate(url)
    first.close()
    open_store(url).close()


def test_the_kernel_frees_the_file_of_a_server_that_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    migrate(url)
    program = (
        "import sys\nfrom giornata.store.database.database import open_store\n"
        "store = open_store(sys.argv[1])\nprint('open', flush=True)\nsys.stdin.read()"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "open\n"
    with pytest.raises(Unavailable, match=f"process {server.pid}"):
        open_store(url)
    server.kill()
    server.communicate()
    open_store(url).close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/d", "nonsense"])
def test_a_url_that_is_of_no_use_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="database"):
        open_store(url)


def test_writers_are_served_in_the_order_they_came() -> None:
    lock, served, queued = FairLock(), [], threading.Semaphore(0)

    def write(number: int) -> None:
        queued.release()
        with lock.held(timeout_s=60):
            served.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    with lock.held(timeout_s=1):
        for place, thread in enumerate(threads, 1):
            thread.start()
            queued.acquire()
            while lock.waiting < place:
                threading.Event().wait(0.001)
    for thread in threads:
        thread.join()
    assert served == list(range(16))


def test_fair_lock_waiter_that_times_out_leaves_the_queue() -> None:
    lock = FairLock()
    refused = []

    def write() -> None:
        try:
            with lock.held(timeout_s=0.01):
                pass
        except Unavailable as error:
            refused.append(error)

    with lock.held(timeout_s=1):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        assert lock.waiting == 0
    assert len(refused) == 1
    with lock.held(timeout_s=1):
        pass


def test_a_write_inside_a_write_is_a_mistake_and_not_a_deadlock() -> None:
    lock = FairLock()
    with lock.held(timeout_s=1), pytest.raises(RuntimeError, match="inside"), lock.held(timeout_s=1):
        pass


def test_loop_lock_has_one_holder_at_a_time_on_postgresql(store: Database) -> None:
    with store.only_here("lapse") as first, store.only_here("lapse") as second, store.only_here("expire") as other:
        assert first
        assert other
        assert second is (store.dialect_name == "sqlite")  # where one process is the rule already
    with store.only_here("lapse") as again:
        assert again


def test_a_lost_connection_is_unavailable_and_the_next_transaction_works(store: Database) -> None:
    if store.dialect_name == "sqlite":
        pytest.skip("there is no connection to lose")
    with pytest.raises(Unavailable), store.begin() as tx:
        pid = tx.connection.scalar(sa.select(sa.func.pg_backend_pid()))
        with store.begin() as other:
            other.connection.execute(sa.select(sa.func.pg_terminate_backend(pid)))
        tx.connection.execute(sa.insert(projects).values(PROJECT))
    assert count(store) == 0
    add_project(store)


def test_a_connection_that_died_while_it_rested_is_replaced(new_postgres: Callable[[], str]) -> None:
    engine = postgres(parse_url(new_postgres()), rested_s=0.0)
    database, other = (
        Database(writer=engine, reader=engine),
        open_store(engine.url.render_as_string(hide_password=False)),
    )
    with database.read() as first, database.read() as second:
        pids = [tx.connection.scalar(sa.select(sa.func.pg_backend_pid())) for tx in (first, second)]
    with other.begin() as tx:
        for pid in pids:  # returns when it is gone
            assert tx.connection.scalar(sa.select(sa.func.pg_terminate_backend(pid, 10_000)))
    with database.read() as first, database.read() as second:
        assert first.connection.scalar(sa.select(sa.func.pg_backend_pid())) not in pids
        assert second.connection.scalar(sa.select(sa.func.pg_backend_pid())) not in pids
    database.close()
    other.close()


def test_a_full_database_is_unavailable_and_a_mistake_is_not(store: Database) -> None:
    if store.dialect_name == "sqlite":
        with pytest.raises(Unavailable, match="full"), store.begin() as tx:
            tx.connection.exec_driver_sql("PRAGMA max_page_count = 1")
            rows = [PROJECT | {"id": f"p{number}", "name": "x" * 100} for number in range(10_000)]
            tx.connection.execute(sa.insert(projects), rows)
    with pytest.raises(sa.exc.DBAPIError), store.begin() as tx:
        tx.connection.exec_driver_sql("SELECT nonsense FROM nowhere")
    assert count(store) == 0


def test_a_server_that_is_not_there_is_unavailable() -> None:
    url = "postgresql://nobody@127.0.0.1:1/giornata"
    with pytest.raises(Unavailable):
        migrate(url)
    with pytest.raises(Unavailable), open_store(url).read():
        pass
