"""Denoising for a GPU, without one: every tensor is on the device, in half precision, and no evaluation waits."""

from typing import Any

import pytest
from tests.fixtures.claimed_cuda.drawing import NAMES
from tests.fixtures.claimed_cuda.started import compiler, facts_of

from giornata.protocol.generation.samplers import SAMPLERS

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler, which makes the claimed device"),
    pytest.mark.timeout(1200),  # the first test waits for all cases: a minute of CPU
]

BY_DIFFUSERS = "a copy that blocks from cpu to cuda at row_schedule.py, step, by diffusers"
DRAW_NOISE = {sampler.name for sampler in SAMPLERS if sampler.ancestral}
"""A picture's own generator draws on the CPU, so that the picture can be repeated on another device."""
SOLVE = {"uni_pc"}
"""Makes a small matrix of numbers for each step."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts_of("tests.fixtures.claimed_cuda.drawing", tmp_path_factory.mktemp("claimed"))


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_neither_mixes_devices_nor_waits_but_in_schedulers_of_diffusers(
    facts: dict[str, Any], name: str
) -> None:
    told = facts[name]
    assert "error" not in told, told["error"]
    waits = {wait for evaluation in told["steps"] for wait in evaluation}
    assert waits == ({BY_DIFFUSERS} if name in DRAW_NOISE | SOLVE else set())
    assert (told["devices"], told["dtypes"]) == (["cuda"], ["torch.float16"])
