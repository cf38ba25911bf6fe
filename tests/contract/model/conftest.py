"""A house on SQLite and one on PostgreSQL, each for all tests of a file."""

from collections.abc import Iterator

import pytest
from tests.contract.model.house import House, lived_in
from tests.fixtures.databases import migrated_for_a_file, opened
from tests.fixtures.postgres import postgres_server, postgres_template  # noqa: F401 - fixtures


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with (
        migrated_for_a_file(request, tmp_path_factory) as url,
        opened(url) as store,
        lived_in(store) as living,
    ):
        yield living
