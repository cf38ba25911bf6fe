"""The API over SQLite and over PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.postgres import new_postgres, postgres_server, postgres_template  # noqa: F401 - fixtures
from tests.fixtures.served import Served, serving


@pytest.fixture(params=["sqlite", "postgresql"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    database = request.getfixturevalue("new_postgres")() if request.param == "postgresql" else None
    with serving(tmp_path, database=database) as running:
        yield running
