"""Databases of earlier revisions: which ones are upgraded, and what stays as it was."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.contract.store.test_database import shape

from giornata.domain.errors import InvalidInput
from giornata.store.database.migrate import migrate
from giornata.store.schema import metadata

OLD = Path(__file__).parents[2] / "fixtures" / "database_0008.sql"
Rows = dict[str, list[dict[str, object]]]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A SQLite database of revision 0008, written by the code of that time: jobs that ended, and one in the queue."""
    path = tmp_path / "giornata.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(OLD.read_text(encoding="utf-8"))
    return path


def rows_of(path: Path, names: dict[str, list[str]] | None = None) -> Rows:
    """Every row by table, in the columns that are named, or in all of them."""
    engine, known = sa.create_engine(f"sqlite:///{path}"), sa.MetaData()
    with engine.connect() as connection:
        known.reflect(connection)
        found: Rows = {}
        for name, table in known.tables.items():
            if names is None or name in names:
                columns = table.c if names is None else [table.c[column] for column in names[name]]
                rows = connection.execute(sa.select(*columns))
                found[name] = sorted((dict(row._mapping) for row in rows), key=repr)
    engine.dispose()
    return found


def test_database_of_revision_0008_keeps_every_row(old: Path) -> None:
    before = rows_of(old)
    kept = {table: rows for table, rows in before.items() if rows and table != "alembic_version"}
    assert {"projects", "jobs", "attempts", "checkpoints", "events", "ledger"} <= kept.keys()
    migrate(f"sqlite:///{old}")
    assert rows_of(old, {table: list(rows[0]) for table, rows in kept.items()}) == kept


def test_database_of_revision_0008_gets_the_schema_of_a_fresh_one(old: Path, tmp_path: Path) -> None:
    migrate(f"sqlite:///{old}")
    migrate(f"sqlite:///{tmp_path}/fresh.db")
    upgraded, fresh, made = (
        sa.create_engine(f"sqlite:///{path}") for path in (old, tmp_path / "fresh.db", ":memory:")
    )
    with upgraded.connect() as first, fresh.connect() as second, made.begin() as third:
        metadata.create_all(third)
        assert shape(first) == shape(second) == shape(third)
    for engine in (upgraded, fresh, made):
        engine.dispose()


def test_database_of_an_older_revision_is_refused_with_what_to_do(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0005'")
        connection.commit()
    before = rows_of(old)
    with pytest.raises(InvalidInput, match=r"has revision 0005; .* upgrades revision 0008 and later") as refused:
        migrate(f"sqlite:///{old}")
    assert "start the last release of Giornata 0.1" in str(refused.value)
    assert rows_of(old) == before
