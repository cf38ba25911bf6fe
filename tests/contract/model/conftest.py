"""A rig on SQLite and one on PostgreSQL, each for all tests of a file."""

from collections.abc import Iterator

import pytest
from tests.contract.model.model_rig import ModelRig, opened_rig
from tests.fixtures.databases import migrated_for_a_file, opened
from tests.fixtures.postgres import postgres_server, postgres_template  # noqa: F401 - fixtures


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelRig]:
    with (
        migrated_for_a_file(request, tmp_path_factory) as url,
        opened(url) as store,
        opened_rig(store) as living,
    ):
        yield living
