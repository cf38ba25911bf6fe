"""The tiny SDXL, built once per session."""

from pathlib import Path

import pytest
import torch

from giornata.diffusion.tiny_model import build_tiny_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Sums are split by the number of threads; the workload's process fixes it, and so do its tests."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
