"""A house on SQLite and one on PostgreSQL, each for all tests of a file."""

from collections.abc import Callable, Iterator

import pytest
from tests.contract.model.house import House, lived_in
from tests.fixtures.databases import new_sqlite, opened
from tests.fixtures.postgres import new_postgres, postgres_server, postgres_template  # noqa: F401 - fixtures


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    if request.param == "postgresql":
        make: Callable[[], str] = request.getfixturevalue("new_postgres")
        url = make()
    else:
        url = new_sqlite(tmp_path_factory.mktemp("model"))
    with opened(url) as store, lived_in(store) as living:
        yield living
