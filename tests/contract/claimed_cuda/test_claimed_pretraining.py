"""The pre-training's step for a GPU, without one: it waits for the device where its guard looks at the loss and at
the gradient's norm before the update, and nowhere else."""

from typing import Any

import pytest
from tests.fixtures.claimed_cuda.pretraining import OPTIONS
from tests.fixtures.claimed_cuda.started import compiler, facts_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler, which makes the claimed device"),
    pytest.mark.timeout(1200),  # the first test waits for all cases
]

LOSSES = "a copy that blocks from cuda to cpu at peers.py, sum"
FOR_THE_GUARD = [LOSSES, "a number is read at optimizer.py, whole"]
ONCE = ["a copy that blocks from cpu to cuda at objective.py, question, by diffusers"]
"""The schedule of noise goes to the device in the first step, and stays."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts_of("tests.fixtures.claimed_cuda.pretraining", tmp_path_factory.mktemp("claimed"))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_waits_for_what_its_guard_judges_and_no_more(facts: dict[str, Any], name: str) -> None:
    told = facts[name]
    assert "error" not in told, told["error"]
    first, second = told["steps"]
    assert first == ONCE + FOR_THE_GUARD
    assert second == FOR_THE_GUARD
    assert told["devices"] == ["cuda"]


@pytest.mark.parametrize("name", OPTIONS)
def test_a_validation_waits_for_its_losses(facts: dict[str, Any], name: str) -> None:
    assert facts[name]["validation"] == [LOSSES]


@pytest.mark.parametrize("name", OPTIONS)
def test_cudnn_chooses_by_the_stopwatch_where_no_bits_are_promised(facts: dict[str, Any], name: str) -> None:
    promised = name.endswith("pinned order")
    assert facts[name]["cudnn"] == [not promised, promised]


@pytest.mark.parametrize("name", OPTIONS)
def test_products_are_in_the_precision_asked_for(facts: dict[str, Any], name: str) -> None:
    assert set(facts[name]["dtypes"]) == {"torch.float32" if name == "fp32" else "torch.bfloat16"}
