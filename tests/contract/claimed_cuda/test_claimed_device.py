"""The device that is only claimed to be there: it tells of what would fail or wait on a GPU, and of nothing else."""

from typing import Any

import pytest
from tests.fixtures.claimed_cuda.started import compiler, facts_of

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler, which makes the claimed device")

COPY, QUICK = "a copy that blocks from", "a quick copy of unpinned memory from"
WAITS = {
    "a number read": ["a number is read"],
    "a branch": ["a number is read"],
    "a list": ["a number is read"] * 12,
    "to the CPU": [f"{COPY} cuda to cpu"],
    "a blocking copy": [f"{COPY} cpu to cuda"],
    "a blocking copy of pinned memory": [f"{COPY} cpu to cuda"],
    "a quick copy of unpinned memory": [f"{QUICK} cpu to cuda"],
    "a quick copy into unpinned memory": [f"{QUICK} cuda to cpu"],
    "a tensor made of numbers": [f"{COPY} cpu to cuda"],
    "indices on the CPU": ["indices are copied to the device"],
    "waiting": ["the device is waited for"],
    "a quick copy of pinned memory": [],
    "a quick copy to the CPU": [],
    "a quick copy into pinned memory": [],
    "learning": [],
    "indices on the device": [],
    "a number of the CPU": [],
}


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts_of("tests.fixtures.claimed_cuda.mistakes", tmp_path_factory.mktemp("claimed"))


@pytest.mark.parametrize("name", ["a layer left on the CPU", "unlike devices"])
def test_tensors_of_unlike_devices_do_not_mix(facts: dict[str, Any], name: str) -> None:
    assert "FakeTensorDeviceMismatchError" in facts[name]["error"]


@pytest.mark.parametrize("name", WAITS)
def test_claimed_device_reports_exactly_the_operations_that_would_wait(facts: dict[str, Any], name: str) -> None:
    assert "error" not in facts[name], facts[name]["error"]
    assert facts[name]["waits"] == WAITS[name]


RECORDED = {
    "recorded: sums": ([], []),
    "recorded: added where it is": ([], []),
    "recorded: a quick copy of pinned memory": (["a copy between cpu and cuda at torch"], []),
    "recorded: a draw": (["randn draws at torch"], []),
    "recorded: a number read": (["a number is read at torch"], []),
    "recorded: a cache": ([], ["mul: (3, 4)"]),
}


@pytest.mark.parametrize("name", RECORDED)
def test_claimed_device_reports_exactly_the_operations_a_cuda_graph_cannot_hold(
    facts: dict[str, Any], name: str
) -> None:
    assert "error" not in facts[name], facts[name]["error"]
    assert (facts[name]["faults"], facts[name]["left"]) == RECORDED[name]


def test_autocast_is_as_on_a_device(facts: dict[str, Any]) -> None:
    assert facts["learning"]["dtypes"] == ["torch.bfloat16"]
