"""How lean a step of full SDXL is on a GPU, without one: operations, dtype copies, element-wise traffic, kept memory.

Fused attention counts as one operation forward and one backward. `silu_backward` counts as seven: a build of torch
for CPUs takes it apart, and a GPU does not. See docs/adr/0050-a-lean-step-on-a-bf16-base.md.
"""

from typing import Any

import pytest
from tests.fixtures.claimed_cuda.started import compiler, facts_of

from giornata.diffusion.base.memory import GIB

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler, which makes the claimed device"),
    pytest.mark.timeout(1200),  # the first test waits for all cases
]

OPERATIONS = {"alone": 8_000, "full gradient checkpointing": 11_500}
KEPT_GIB = {"alone": 5.265, "full gradient checkpointing": 0.455}
"""What tests/unit/diffusion/test_memory.py holds the reckoned memory to."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = facts_of("tests.fixtures.claimed_cuda.full_step", tmp_path_factory.mktemp("claimed"))
    assert not [told["error"] for told in found.values() if "error" in told]
    return found


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_step_launches_few_operations(facts: dict[str, Any], name: str) -> None:
    assert facts[name]["operations"] <= OPERATIONS[name]


def test_a_step_moves_little_element_by_element(facts: dict[str, Any]) -> None:
    assert facts["alone"]["element_wise_gb"] <= 40.0


def test_four_jobs_launch_hardly_more_than_one(facts: dict[str, Any]) -> None:
    assert facts["four jobs"]["operations"] <= 1.15 * facts["alone"]["operations"]


@pytest.mark.parametrize("name", ["alone", "full gradient checkpointing", "four jobs"])
def test_tensors_are_cast_once_a_pass_and_not_once_a_layer(facts: dict[str, Any], name: str) -> None:
    """The adapters' row and its gradient, what the UNet is shown, its answer, and the embeddings of time and size."""
    assert facts[name]["dtype_copies"] <= 8


@pytest.mark.parametrize("name", KEPT_GIB)
def test_a_step_keeps_what_is_reckoned(facts: dict[str, Any], name: str) -> None:
    assert facts[name]["kept_bytes"] / GIB == pytest.approx(KEPT_GIB[name], rel=0.02)
