"""For all tests: nothing fails for being slow, libraries repeat, and Python seeks no garbage where there is none, the
last two as in the engine."""

import atexit
import gc
import os
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from giornata.agent.engines.engines import DETERMINISM
from giornata.engine.process_setup import kept_for_good

# MKL reads it once, before the first matrix product of any test.
os.environ.setdefault("MKL_CBWR", DETERMINISM["MKL_CBWR"])

# How long an example takes, or the drawing of one, says how busy the machine is. In CI, where `.ci/run` sets the
# variable, examples are the same each time: a landing is judged by its change. Every other run draws new ones.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="SAME_EXAMPLES" in os.environ,
)
settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Torch and diffusers are a million objects, among which each `gc.collect()` would look again, in vain."""
    with kept_for_good():
        return (yield)


def pytest_unconfigure() -> None:
    """DuckDB's bindings look at exit whether all their objects were freed, and list those that were kept for good.

    Not before the exit: pytest seeks garbage five times at its end, and a process of xdist that takes more than five
    seconds to do so is interrupted, wherever it is, and may then hang.
    """
    if "duckdb" in sys.modules:
        atexit.register(gc.unfreeze)
