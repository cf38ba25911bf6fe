"""Bring a database up to date with the code."""

import time
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from giornata.domain.errors import Fault, InvalidInput
from giornata.store.database.database import busy_is_unavailable
from giornata.store.database.dialects import parse_url, postgres, sqlite_path, sqlite_writer
from giornata.store.database.sqlite_file import ProcessLock, private_database
from giornata.store.database.transfer_marks import refuse_marked

# Any number that no other program in the same database uses: servers that start together migrate in turn.
_MIGRATION_LOCK = 0x6769_6F72
# Well below PostgreSQL's deadlock_timeout of a second: where a request and a migration wait for each other, it is the
# migration that gives way.
_LOCK_WAIT_MS = 300
_TRIES, _PAUSE_S = 120, 1.0
_LOCK_NOT_AVAILABLE = "55P03"


def migrate(url: str) -> None:
    """Run the migrations that the database has not seen yet. May be repeated, and run by several servers at once.

    Raises InvalidInput for a URL that is of no use, for a database that is too old, and for one that is being moved
    or was moved. Raises Unavailable when another process has the SQLite file, or the server cannot be reached.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        _upgrade_beside_servers(postgres(parsed, pool_size=2))
        return
    path = sqlite_path(parsed)
    private_database(path)
    lock = ProcessLock(path)
    try:
        _upgrade(sqlite_writer(parsed))
    finally:
        lock.release()


def is_current(connection: sa.Connection) -> bool:
    """Return True when the database has seen every migration."""
    return revision_of(connection) == ScriptDirectory.from_config(_config()).get_current_head()


def serves(connection: sa.Connection) -> bool:
    """Return True when this version can work on the database: it is current, or a later version has migrated it.

    A later version only adds to a schema that servers of the version before use, as ADR 95 says.
    """
    revision = revision_of(connection)
    return is_current(connection) or (revision is not None and not knows_revision(revision))


def revision_of(connection: sa.Connection) -> str | None:
    """Return the latest migration that the database has seen; None for a database without any."""
    return MigrationContext.configure(connection).get_current_revision()


def knows_revision(revision: str | None) -> bool:
    """Return True when this version has the migration, so that it can bring such a database up to date."""
    return revision in {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _upgrade(engine: Engine) -> None:
    """Run all migrations in one transaction: nobody else is in the file."""
    try:
        with busy_is_unavailable(), engine.begin() as connection:
            config = _checked(connection)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def _upgrade_beside_servers(engine: Engine) -> None:
    """Run each migration in a transaction of its own, while servers of the version before hand out work.

    A lock on a table is held for one migration. A migration that waits for its lock holds up everybody who comes
    later, so it waits for a moment only, and then begins again.
    """
    try:
        with busy_is_unavailable(), engine.connect() as connection:
            # An index that is built beside claims waits for all open transactions and statements: so nobody waits for
            # the turn inside one.
            turn = connection.execution_options(isolation_level="AUTOCOMMIT")
            while not turn.scalar(sa.select(sa.func.pg_try_advisory_lock(_MIGRATION_LOCK))):
                time.sleep(_PAUSE_S)  # another server is at it; the lock is held until its connection closes
            config = _checked(turn)
            for tries_left in reversed(range(_TRIES)):
                try:
                    _upgrade_each(engine, config)
                    return
                except OperationalError as error:
                    if tries_left == 0 or getattr(error.orig, "sqlstate", "") != _LOCK_NOT_AVAILABLE:
                        raise
                    time.sleep(_PAUSE_S)
    finally:
        engine.dispose()


def _upgrade_each(engine: Engine, config: Config) -> None:
    with engine.connect() as connection:
        _wait_for_long(connection, lock_timeout_ms=_LOCK_WAIT_MS)
        connection.commit()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _wait_for_long(connection: sa.Connection, *, lock_timeout_ms: int = 0) -> None:
    """Let statements of this connection take as long as they take, and wait for locks for so long; 0: without end."""
    connection.execute(sa.text(f"SET lock_timeout = {lock_timeout_ms}"))
    connection.execute(sa.text("SET statement_timeout = 0"))


def _checked(connection: sa.Connection) -> Config:
    """Return the configuration of the migrations for a database that they may be run on. Raises InvalidInput."""
    config = _config()
    refuse_marked(connection)
    _check_revision(connection, config)
    return config


def _check_revision(connection: sa.Connection, config: Config) -> None:
    """Raises InvalidInput for a database from before the first migration that is still here, and for one that a later
    version has migrated.
    """
    found = revision_of(connection)
    (first,) = ScriptDirectory.from_config(config).get_bases()
    if found is not None and found < first:
        message = (
            f"the database has revision {found}; this version of Giornata upgrades revision {first} and later ones"
        )
        hint = "back it up, start the last release of Giornata 0.1 on it once, and then this version"
        raise InvalidInput([Fault(where="database", message=message, hint=hint)])
    if found is not None and not knows_revision(found):
        message = f"the database has revision {found}, of a later version of Giornata"
        raise InvalidInput([Fault(where="database", message=message, hint="start that version or a later one")])


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    return config
