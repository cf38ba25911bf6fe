"""Small runs of the simulator. One run of a kind serves every test that only looks at it."""

import functools
from typing import Any

import pytest

from giornata.simulate.report import summary
from giornata.simulate.scenarios import SCENARIOS, sized
from giornata.simulate.world import played


@functools.cache
def told(name: str, *, jobs: int, nodes: int, policy: str = "giornata", seed: int = 0) -> dict[str, Any]:
    """The summary of a run."""
    with played(sized(SCENARIOS[name], jobs=jobs, nodes=nodes), seed=seed, policy=policy) as ran:  # type: ignore[arg-type]
        return summary(ran)


@pytest.fixture(scope="session")
def run_of() -> Any:
    """See `told`."""
    return told
