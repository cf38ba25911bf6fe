"""A served installation for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.served import Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for a whole file of tests that leave nothing behind."""
    with serving(tmp_path_factory.mktemp("standing")) as running:
        yield running
