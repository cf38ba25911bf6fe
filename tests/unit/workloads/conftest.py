"""The tiny SDXL, built once per session."""

from pathlib import Path

import pytest

from giornata.diffusion.determinism import fix_determinism
from giornata.diffusion.tiny_model import build_tiny_model


@pytest.fixture(scope="session", autouse=True)
def _as_in_the_engine() -> None:
    """As the engine's process does it: sums are split by the number of threads, and kernels have to repeat."""
    fix_determinism(threads=1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
