"""What libraries want to see in the environment before their first product, so that they repeat themselves."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from giornata.diffusion.draws.determinism import let_libraries_repeat
from giornata.domain.errors import InvalidInput
from giornata.pretrain.encoding.encoder import open_encoder
from giornata.pretrain.ray_train.worker import work
from giornata.protocol.pretraining import Architecture, Model

NAME = "CUBLAS_WORKSPACE_CONFIG"
NOWHERE = Model(architecture=Architecture.SD2, pretrained_model_name_or_path="/no/such/folder")


def test_deterministic_environment_variables_are_set_unless_already_set() -> None:
    empty: dict[str, str] = {}
    let_libraries_repeat(empty)
    assert empty == {NAME: ":4096:8", "MKL_CBWR": "AUTO,STRICT"}
    chosen = {NAME: ":16:8"}
    let_libraries_repeat(chosen)
    assert chosen[NAME] == ":16:8"


def test_an_evaluation_sets_it_for_itself() -> None:
    """It asks torch for deterministic kernels, and nobody starts it with that environment."""
    program = (
        "import os, sys, torch; from giornata.pretrain.evaluate import main\n"
        "main('no such file')\n"
        f"assert torch.are_deterministic_algorithms_enabled(); sys.stdout.write(os.environ['{NAME}'])"
    )
    without = {name: value for name, value in os.environ.items() if name != NAME}
    told = subprocess.run([sys.executable, "-c", program], env=without, capture_output=True, text=True, check=True)
    assert told.stdout.endswith(":4096:8")


BEGINNINGS: list[Callable[[], object]] = [
    lambda: work({"config": {}, "board": None}),
    lambda: open_encoder(NOWHERE, seed=0, device="cpu"),
]


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_trainers_and_encoders_set_it_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[[], object]
) -> None:
    """Ray begins their processes, on machines whose environment nobody prepared."""
    monkeypatch.delenv(NAME, raising=False)
    monkeypatch.delenv("MKL_CBWR")
    with pytest.raises(InvalidInput):
        begin()
    assert (os.environ[NAME], os.environ["MKL_CBWR"]) == (":4096:8", "AUTO,STRICT")
