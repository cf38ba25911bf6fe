"""`giornata migrate-store`: what it refuses before it looks at PostgreSQL. The move itself is a contract test."""

from pathlib import Path

import pytest
from tests.fixtures.databases import new_sqlite, opened
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.domain.errors import InvalidInput
from giornata.store.database.migrate import migrate
from giornata.store.database.transfer_marks import STATE, TARGET, marks


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["migrate-store", *arguments], env={"GIORNATA_DATABASE": None})
    assert done.exit_code == 2, done.output
    return done.stderr


def test_a_target_has_to_be_given(tmp_path: Path) -> None:
    assert "TARGET: is not given" in refused(new_sqlite(tmp_path))


@pytest.mark.parametrize(
    ("source", "target", "fault"),
    [
        ("postgresql://host/a", "postgresql://host/b", "SOURCE: is not sqlite:"),
        ("sqlite:///a.db", "sqlite:///b.db", "TARGET: is not postgresql:"),
        ("a.db", "postgresql://host/b", "is not a database URL"),
        ("sqlite:////nowhere/a.db", "postgresql://host/b", "SOURCE: there is no database /nowhere/a.db"),
    ],
)
def test_other_databases_are_refused(source: str, target: str, fault: str) -> None:
    assert fault in refused(source, target)


def test_a_database_without_an_installation_is_refused(tmp_path: Path) -> None:
    assert "SOURCE: holds no installation" in refused(new_sqlite(tmp_path), "postgresql://host/b")


def test_a_move_is_given_up_and_the_source_opens_again(tmp_path: Path) -> None:
    url = new_sqlite(tmp_path)
    with opened(url) as store, store.begin() as tx:
        marks.create(tx.connection)
        said = [{"name": STATE, "said": "moving"}, {"name": TARGET, "said": "db/giornata"}]
        tx.connection.execute(marks.insert(), said)
    with pytest.raises(InvalidInput, match="is being moved to db/giornata"):
        migrate(url)
    done = CliRunner().invoke(app, ["migrate-store", url, "--abandon"])
    assert (done.exit_code, done.output) == (0, f"Servers may start on it again: {url}\n")
    migrate(url)
