"""Libraries that are preloaded into nodes, so that their world is another."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.system.faults.rig import SCRIPTS


def library(folder: Path, name: str) -> Path:
    """`scripts/NAME.c`, compiled. Skips the test, with the reason, where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip(f"no C compiler to build {name} with")
    built = folder / f"{name}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, SCRIPTS / f"{name}.c", "-ldl"], check=True)
    return built
