"""Every driver goes through the same tests: a name in DRIVERS, and a module `driver_<name>.py` beside this one."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.fleets.kubernetes_fleets import opened, opened_strict, strict  # noqa: F401
from tests.contract.fleets.under_test import FleetUnderTest
from tests.fixtures.kubernetes_real import VARIABLE

DRIVERS = [
    "local",
    "static",
    "salad",
    "salad_groups",
    "kubernetes",
    "kubernetes_stateful_set",
    "skypilot",
]
if VARIABLE in os.environ:  # otherwise there is nothing that they could run on
    DRIVERS += ["kubernetes_real", "kubernetes_real_stateful_set"]
# Processes of one's own can always be asked, and what was heard of is in one's own store.
NEVER_AWAY = {
    "local",
    "static",
}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def under_test(driver: str, tmp_path: Path) -> Iterator[FleetUnderTest]:
    module = importlib.import_module(f"tests.contract.fleets.driver_{driver}")
    with module.opened(tmp_path) as it:
        yield it


@pytest.fixture
def renting(under_test: FleetUnderTest) -> FleetUnderTest:
    """Only where nodes can be had for the asking: what the others do instead has tests of its own."""
    if not under_test.gives_nodes:
        pytest.skip("nobody but their owners can start or end these machines")
    return under_test


@pytest.fixture
def never_away(driver: str) -> bool:
    return driver in NEVER_AWAY
