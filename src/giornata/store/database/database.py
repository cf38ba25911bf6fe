"""A database, and transactions on it."""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from giornata.domain.errors import Unavailable
from giornata.store.database.dialects import parse_url, postgres, sqlite_path, sqlite_reader, sqlite_writer
from giornata.store.database.sqlite_file import FairLock, ProcessLock, private_database
from giornata.store.database.transaction import Transaction

WRITE_WAIT_S = 30.0
_SQLITE_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}


class Database:
    """Short transactions from any number of threads.

    SQLite: this process alone writes, one transaction after the other in the order they were asked for; readers
    block nobody. PostgreSQL: any number of servers.
    """

    def __init__(self, *, writer: Engine, reader: Engine, process_lock: ProcessLock | None = None) -> None:
        self.dialect_name = writer.dialect.name
        self._writer = writer
        self._reader = reader
        self._process_lock = process_lock
        self._writers = FairLock() if self.dialect_name == "sqlite" else None

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        """Open a write transaction: it commits at the end, and rolls back on any exception. Raises Unavailable."""
        turn = self._writers.held(timeout_s=WRITE_WAIT_S) if self._writers else nullcontext()
        with turn, busy_is_unavailable(), self._writer.begin() as connection:
            yield Transaction(connection, self.dialect_name)

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Open a read transaction: one snapshot, and no way to write. Raises Unavailable."""
        with busy_is_unavailable(), self._reader.connect() as connection:
            if self.dialect_name == "postgresql":
                connection = connection.execution_options(  # noqa: PLW2901
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            with connection.begin():
                yield Transaction(connection, self.dialect_name)

    @contextmanager
    def only_here(self, name: str) -> Iterator[bool]:
        """Yield True when this server may run the loop `name` now; on PostgreSQL one server at a time may."""
        if self.dialect_name == "sqlite":
            yield True
            return
        key = zlib.crc32(name.encode()) - 2**31
        with busy_is_unavailable(), self._writer.begin() as connection:
            # Held by the transaction, so that a server that dies lets go of it.
            yield bool(connection.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(key))))

    def erase_replaced(self) -> None:
        """See that the database's files hold nothing of the signing key that was replaced. Raises Unavailable."""
        with busy_is_unavailable(), self._writer.connect() as connection:
            if self.dialect_name == "sqlite":
                # Outside of a transaction, which the engine would begin.
                driver: Any = connection.connection.driver_connection
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            else:
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")  # noqa: PLW2901
                connection.execute(sa.text("VACUUM FULL installation"))

    def close(self) -> None:
        """Close every connection and let go of the file."""
        self._writer.dispose()
        self._reader.dispose()
        if self._process_lock is not None:
            self._process_lock.release()


def open_store(url: str) -> Database:
    """Open the database at `url`, which `migrate` has brought up to date.

    Raises InvalidInput for a URL that is of no use, and Unavailable when another process has the SQLite file.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        path = sqlite_path(parsed)
        private_database(path)
        lock = ProcessLock(path)
        return Database(writer=sqlite_writer(parsed), reader=sqlite_reader(parsed), process_lock=lock)
    engine = postgres(parsed)
    return Database(writer=engine, reader=engine)


@contextmanager
def busy_is_unavailable() -> Iterator[None]:
    """Turn the database's passing conditions (away, busy, full) into Unavailable; mistakes stay what they are."""
    try:
        yield
    except PoolTimeout as error:
        raise Unavailable("every connection to the database is in use") from error
    except DBAPIError as error:
        if error.connection_invalidated or _passes(error):
            public = "the database cannot do it just now; the server's log says why"
            raise Unavailable(f"the database cannot do it just now: {error.orig}", public=public) from error
        raise


def _passes(error: DBAPIError) -> bool:
    """Return True when this is the database's present condition (busy, full, going down), not a mistake of ours."""
    if isinstance(error.orig, sqlite3.Error):
        return error.orig.sqlite_errorcode & 0xFF in _SQLITE_PASSING
    return isinstance(error, OperationalError)
