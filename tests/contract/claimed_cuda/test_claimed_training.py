"""The trainer's step for a GPU, without one: every tensor is on the device, and nothing waits for the device.

See giornata's docs/architecture.md, section 6, and tests/gpu, which asks the same of a real one.
"""

from typing import Any

import pytest
from tests.fixtures.claimed_cuda.started import compiler, facts_of
from tests.fixtures.claimed_cuda.training import NAMES, ON_SD15, SOLO

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler, which makes the claimed device"),
    pytest.mark.timeout(1200),  # the first test waits for all cases: a minute of CPU
]

TO_THE_DEVICE = "a copy that blocks from cpu to cuda at objective.py"
ONCE = {f"{TO_THE_DEVICE}, {where}" for where in ("question, by diffusers", "target, by diffusers", "_alphas")}
"""The schedule of noise goes to the device in the first step, and stays."""
BY_ITSELF: dict[str, list[str]] = {
    "EDM of velocities, 8-bit AdamW": ["the device is waited for at optimizer.py, step, by bitsandbytes"],
}
"""An optimizer whose package waits in every step."""
WITHOUT_GRAPHS = {
    "text encoders that stop",
    "new tokens of a concept, constant huber",
    "SD 1.5, text encoder",
    "rates of each text encoder",
    "dropouts of network, rank and module",
}
IN_FP32 = {"fp32", "DoRA, an average", "the base's own word, DoRA", "adafactor, DoRA"}
"""Lengths of DoRA's weights are taken in float32, whatever autocast says."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts_of("tests.fixtures.claimed_cuda.training", tmp_path_factory.mktemp("claimed"))


@pytest.mark.parametrize("name", NAMES)
def test_a_step_neither_mixes_devices_nor_waits(facts: dict[str, Any], name: str) -> None:
    told = facts[name]
    assert "error" not in told, told["error"]
    first, *later = told["steps"]
    expected = BY_ITSELF.get(name, [])
    assert set(first) - set(expected) <= ONCE
    assert later == [expected] * len(later)
    assert later
    assert told["devices"] == ["cuda"]


@pytest.mark.parametrize("name", [*SOLO, *ON_SD15])
def test_a_pass_that_may_be_a_graph_holds_nothing_that_a_graph_cannot(facts: dict[str, Any], name: str) -> None:
    """Neither waits nor copies between CPU and device, nor memory that is left behind in the graph's pool."""
    recorded = facts[name]["recorded"]
    if name in WITHOUT_GRAPHS:
        assert recorded is None
        return
    assert recorded["faults"] == []
    assert recorded["left"] == []
    assert recorded["operations"] > 100


@pytest.mark.parametrize("name", [name for name in NAMES if name not in IN_FP32])
def test_under_bf16_matrix_products_are_in_bf16(facts: dict[str, Any], name: str) -> None:
    assert set(facts[name]["dtypes"]) == {"torch.bfloat16"}


def test_matrix_products_without_mixed_precision_are_in_float32(facts: dict[str, Any]) -> None:
    assert SOLO["fp32"]["mixed_precision"] == "no"
    assert set(facts["fp32"]["dtypes"]) == {"torch.float32"}


@pytest.mark.parametrize(("kind", "bytes_per_weight"), [("int8", 3), ("fp8", 7)])
def test_weights_in_8_bits_are_widened_without_a_copy_in_float32(
    facts: dict[str, Any], kind: str, bytes_per_weight: int
) -> None:
    """All layers of SDXL's UNet, forward and backward. For int8 a byte is read and bf16 written; for fp8 the bf16 is
    read and written once more. A float32 copy would take 19 bytes a weight."""
    told = facts[f"all layers in {kind}"]
    assert "error" not in told, told["error"]
    assert told["weights"] > 2.5e9
    assert told["wide"] == 0
    assert told["bytes"] < 2 * 1.01 * bytes_per_weight * told["weights"]
