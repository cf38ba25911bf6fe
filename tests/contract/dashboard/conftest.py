"""One furnished installation for all tests of pages that change nothing."""

from collections.abc import Iterator

import pytest
from tests.fixtures.dashboard import Furnished, furnished


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnished]:
    with furnished(tmp_path_factory.mktemp("house")) as made:
        yield made
