"""Open each kind of database: a commit is durable, a write exclusive, a wait bounded."""

import os
import socket
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from giornata import __version__
from giornata.domain.errors import Fault, InvalidInput

VERSION_PREFIX = "giornata "
CONNECTION_NAME_LENGTH = 63  # PostgreSQL cuts off the rest
SQLITE_BUSY_MS = 30_000
POSTGRES_STATEMENT_MS = 30_000
POSTGRES_LOCK_MS = 10_000
POSTGRES_RESTED_S = 1.0


def parse_url(url: str) -> URL:
    """`sqlite:///path` or `postgresql://…` with its driver named. Raises InvalidInput for anything else."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidInput([_url_fault("is not a database URL")]) from None
    dialect = parsed.get_backend_name()
    if dialect == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise InvalidInput([_url_fault("names no file; a database in memory would forget every job")])
        return parsed.set(drivername="sqlite+pysqlite")
    if dialect in {"postgresql", "postgres"}:
        return parsed.set(drivername="postgresql+psycopg")
    raise InvalidInput([_url_fault(f"names a database of {dialect}, which is not offered")])


def sqlite_path(url: URL) -> Path:
    """Return the file of a SQLite URL."""
    return Path(url.database or "").absolute()


def sqlite_writer(url: URL) -> Engine:
    """Open one connection whose transactions take the write lock at their beginning, never halfway."""
    engine = sa.create_engine(url, pool_size=1, max_overflow=0, connect_args={"check_same_thread": False})
    _on_connect(
        engine,
        ["PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON", *_SQLITE_ALWAYS],
    )
    _begin_with(engine, "BEGIN IMMEDIATE")
    return engine


def sqlite_reader(url: URL) -> Engine:
    """Open connections that see one snapshot per transaction, block nobody, and cannot write."""
    engine = sa.create_engine(url, pool_size=8, max_overflow=56, connect_args={"check_same_thread": False})
    _on_connect(engine, ["PRAGMA query_only = ON", *_SQLITE_ALWAYS])
    _begin_with(engine, "BEGIN")
    return engine


def postgres(url: URL, *, pool_size: int = 16, rested_s: float = POSTGRES_RESTED_S) -> Engine:
    """Open an engine of psycopg 3, READ COMMITTED, with an end to every wait."""
    # Statements read few rows. Compiling one, or starting processes for it, takes longer than running it, whatever
    # the planner expects of it.
    options = (
        f"-c statement_timeout={POSTGRES_STATEMENT_MS} -c lock_timeout={POSTGRES_LOCK_MS} -c timezone=UTC -c jit=off "
        "-c max_parallel_workers_per_gather=0"
    )
    engine = sa.create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        isolation_level="READ COMMITTED",
        connect_args={"options": options, "connect_timeout": 10, "application_name": connection_name()},
    )
    _ping_after_rest(engine, rested_s=rested_s)
    return engine


def connection_name(version: str = __version__) -> str:
    """Return the name of this process's connections: version, machine and process, as `pg_stat_activity` shows it."""
    return f"{VERSION_PREFIX}{version} {socket.gethostname()}:{os.getpid()}"[:CONNECTION_NAME_LENGTH]


def _ping_after_rest(engine: Engine, *, rested_s: float) -> None:
    """Ask a connection that was not used for a while whether it is still there, and take another if it is not.

    `pool_pre_ping` asks each time: a round trip more for every transaction of a server that is at work.
    """

    @sa.event.listens_for(engine, "checkin")
    def _rests(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["rests_since_s"] = time.monotonic()

    @sa.event.listens_for(engine, "checkout")
    def _wake(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        since_s = record.info.get("rests_since_s")
        if since_s is None or time.monotonic() - since_s < rested_s:
            return
        try:
            engine.dialect.do_ping(connection)
        except _driver_error(engine) as error:
            raise sa.exc.InvalidatePoolError("the connection is gone") from error


def _driver_error(engine: Engine) -> type[Exception]:
    driver: Any = engine.dialect.loaded_dbapi
    error: type[Exception] = driver.Error
    return error


_SQLITE_ALWAYS = (f"PRAGMA busy_timeout = {SQLITE_BUSY_MS}", "PRAGMA temp_store = MEMORY")


def _on_connect(engine: Engine, statements: list[str]) -> None:
    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        # The driver must not begin transactions by itself: the "begin" event does.
        connection.isolation_level = None
        for statement in statements:
            connection.execute(statement)


def _begin_with(engine: Engine, statement: str) -> None:
    def begin(connection: Any) -> None:
        connection.cursor().execute(statement)

    # Not a listener for "begin": with one the engine looks for listeners before and after every statement.
    engine.dialect.do_begin = begin  # type: ignore[assignment, method-assign]


def _url_fault(message: str) -> Fault:
    return Fault(
        where="database", message=message, hint="use sqlite:////folder/giornata.db or postgresql://host/name"
    )
