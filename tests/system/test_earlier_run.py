"""A run that version 0.1.0 began continues from its checkpoint, and ends with the weights that 0.1.0 would have made.

`tests/fixtures/run_0_1_0` is the storage that 0.1.0 left after 3 of 6 steps, and `whole.safetensors` its own result.
A checkpoint names the path of its model, so the test puts the model there.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safetensors import safe_open
from tests.system.test_standalone import Tool, ended, ground  # noqa: F401

if TYPE_CHECKING:
    import torch

BEGUN = Path(__file__).parents[1] / "fixtures" / "run_0_1_0"
MODEL = Path("/tmp/giornata-run-0.1.0/tiny")
RATE = 2e-3
CPU = "cpu x86_64 Intel(R) Xeon(R) Processor AVX512"
"""The device that made the fixture. Others round differently."""


@pytest.fixture
def tool(ground: Path, tmp_path: Path) -> Iterator[Tool]:  # noqa: F811
    shutil.copytree(ground / "tiny", MODEL, dirs_exist_ok=True)
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "pictures").symlink_to(ground / "pictures")
    (tmp_path / "tiny").symlink_to(MODEL)
    yield Tool(ground=tmp_path, home=home)
    shutil.rmtree(MODEL.parent)


def tensors_of(path: Path) -> tuple[dict[str, str], dict[str, "torch.Tensor"]]:
    with safe_open(path, framework="pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_run_of_0_1_0_goes_on_from_its_checkpoint_with_the_same_weights(tool: Tool) -> None:
    # Here: a process that runs other tests need not load torch.
    import torch

    objects = tool.home / "storage" / "objects"
    objects.mkdir(parents=True)
    shutil.copy(BEGUN / "job.json", objects)
    shutil.copytree(BEGUN / "checkpoints", objects / "checkpoints")
    process = tool.start(
        str(tool.home / "storage"), "--model", str(MODEL), steps=6, seed=5, rank=2, checkpointing_steps=3
    )
    told = ended(process)
    assert (told["state"], told["resumed_from"]) == ("succeeded", 3), told
    metadata, found = tensors_of(tool.home / "out" / "lora-kohya.safetensors")
    _, whole = tensors_of(BEGUN / "whole.safetensors")
    assert found.keys() == whole.keys()
    history = metadata["giornata.fingerprints"]
    assert '"code":"0.1.0"' in history and history.count('"from_step"') == 2
    exact = history.count(CPU) == 2
    for name, tensor in whole.items():
        if exact:
            assert torch.equal(found[name], tensor), name
        else:  # three steps of AdamW move a number by at most three times the rate; hardly one differs by so much
            difference = (found[name] - tensor).abs()
            assert difference.max() <= 6 * RATE and difference.mean() <= RATE / 20, name
