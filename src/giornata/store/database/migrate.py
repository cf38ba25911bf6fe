"""Bring a database up to date with the code."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Engine

from giornata.domain.errors import Fault, InvalidInput
from giornata.store.database.database import busy_is_unavailable
from giornata.store.database.dialects import parse_url, postgres, sqlite_path, sqlite_writer
from giornata.store.database.sqlite_file import ProcessLock, private_database
from giornata.store.database.transfer_marks import refuse_marked

# Any number that no other program in the same database uses: servers that start together migrate in turn.
_MIGRATION_LOCK = 0x6769_6F72


def migrate(url: str) -> None:
    """Run the migrations that the database has not seen yet. May be repeated, and run by several servers at once.

    Raises InvalidInput for a URL that is of no use, for a database that is too old, and for one that is being moved
    or was moved. Raises Unavailable when another process has the SQLite file, or the server cannot be reached.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        _upgrade(postgres(parsed, pool_size=1))
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


def revision_of(connection: sa.Connection) -> str | None:
    """Return the latest migration that the database has seen; None for a database without any."""
    return MigrationContext.configure(connection).get_current_revision()


def knows_revision(revision: str | None) -> bool:
    """Return True when this version has the migration, so that it can bring such a database up to date."""
    return revision in {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _upgrade(engine: Engine) -> None:
    try:
        with busy_is_unavailable(), engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            config = _config()
            refuse_marked(connection)
            _check_revision(connection, config)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def _check_revision(connection: sa.Connection, config: Config) -> None:
    """Raises InvalidInput for a database from before the first migration that is still here."""
    found = revision_of(connection)
    (first,) = ScriptDirectory.from_config(config).get_bases()
    if found is not None and found < first:
        message = (
            f"the database has revision {found}; this version of Giornata upgrades revision {first} and later ones"
        )
        hint = "back it up, start the last release of Giornata 0.1 on it once, and then this version"
        raise InvalidInput([Fault(where="database", message=message, hint=hint)])


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    return config
