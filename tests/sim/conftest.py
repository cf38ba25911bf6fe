"""Small runs of the simulator. One run of a kind serves every test that only looks at it, in whatever process."""

import fcntl
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.simulate.comparison import played, summary

from giornata.simulate.scenarios import SCENARIOS, sized


def told(name: str, *, jobs: int, nodes: int, policy: str, seed: int) -> dict[str, Any]:
    """The summary of a run."""
    with played(sized(SCENARIOS[name], jobs=jobs, nodes=nodes), seed=seed, policy=policy) as ran:  # type: ignore[arg-type]
        return summary(ran)


@pytest.fixture(scope="session")
def run_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """See `told`. Processes that test side by side find each other's runs in the folder above their own."""
    own = tmp_path_factory.getbasetemp()
    folder: Path = own.parent if hasattr(request.config, "workerinput") else own

    @functools.cache
    def shared(name: str, *, jobs: int, nodes: int, policy: str = "giornata", seed: int = 0) -> dict[str, Any]:
        path = folder / f"{name}-{jobs}-{nodes}-{policy}-{seed}.json"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(json.dumps(told(name, jobs=jobs, nodes=nodes, policy=policy, seed=seed)))
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    return shared
