"""Copy a SQLite database while a server writes to it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from giornata.domain.errors import Unavailable
from giornata.store.database.dialects import SQLITE_BUSY_MS


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy the database as one transaction sees it into the new file `target`. Writers are not held up.

    The copy is one file, without a log beside it. Raises Unavailable when the source cannot be read or is damaged.
    """
    if not source.is_file():
        raise Unavailable(f"there is no database {source}")
    with _sqlite_is_unavailable(source), closing(sqlite3.connect(source)) as live:
        live.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_MS}")
        live.execute("PRAGMA query_only = ON")
        with closing(sqlite3.connect(target)) as copy:
            # All pages in one step: with several steps, each write of the server would begin the copy anew.
            live.backup(copy, pages=-1)
            copy.execute("PRAGMA journal_mode = DELETE")
    check_sqlite(target)


def check_sqlite(path: Path) -> None:
    """Raises Unavailable with the first fault of a database whose pages do not fit together."""
    with _sqlite_is_unavailable(path), closing(sqlite3.connect(path)) as connection:
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if said != "ok":
        raise Unavailable(f"the database {path} is damaged: {said}", hint="restore a backup")


@contextmanager
def _sqlite_is_unavailable(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise Unavailable(f"the database {path} cannot be read: {error}") from error
