"""One installation for each module of faults."""

from collections.abc import Iterator

import pytest
from tests.system.conftest import until
from tests.system.faults.rig import Rig, running_rig
from tests.system.faults.setup import EMBEDDED


@pytest.fixture(scope="module")
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server, its proxies, and the nodes that tests start, on the module's GROUND if it has one."""
    setup = getattr(request.module, "GROUND", EMBEDDED)
    with running_rig(tmp_path_factory.mktemp("rig"), setup) as running:
        yield running


@pytest.fixture(autouse=True)
def nobody_left(rig: Rig) -> Iterator[None]:
    """After each test: of nodes that have ended nothing runs. What else may be left the rig looks at in the end."""
    yield
    until(lambda: not rig.orphans(), lambda: f"the end of {rig.orphans()}")
