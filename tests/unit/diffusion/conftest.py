"""The tiny models, built once per session and loaded once per module."""

from pathlib import Path

import pytest
import torch

from giornata.diffusion.families import SD15
from giornata.diffusion.models import BaseModel, load_base
from giornata.diffusion.tiny_model import build_tiny_model
from giornata.protocol.specs import TrainSpec


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def tiny_base(tiny_folder: Path) -> BaseModel:
    spec = TrainSpec(pretrained_model_name_or_path=str(tiny_folder), dataset="ds_1", seed=1, resolution=64)
    return load_base(spec, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="session")
def tiny_sd15_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny-sd15", SD15)


@pytest.fixture(scope="module")
def tiny_sd15_base(tiny_sd15_folder: Path) -> BaseModel:
    spec = TrainSpec(pretrained_model_name_or_path=str(tiny_sd15_folder), dataset="ds_1", seed=1, resolution=64)
    return load_base(spec, device="cpu", dtype=torch.float32)
