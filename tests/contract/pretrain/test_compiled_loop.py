"""The loop with compiled kernels: near to the loop without, and the same bytes after an interruption."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.pretrain.test_half_precision import column, tensors, train_one
from tests.fixtures.kernels import needs_compiler
from torch._dynamo.utils import counters

pytestmark = [needs_compiler, pytest.mark.timeout(1200)]
SETTINGS: dict[str, Any] = {"samples": (24,)}


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, kernel_directory: Path) -> Path:
    """Plain, compiled, and compiled with an end between."""
    top, before = tmp_path_factory.mktemp("runs"), graphs()
    train_one(top / "plain", **SETTINGS)
    assert graphs() == before
    train_one(top / "compiled", torch_compile=True, **SETTINGS)
    assert graphs() > before
    train_one(top / "interrupted", torch_compile=True, stop_before=2, **SETTINGS)
    train_one(top / "interrupted", torch_compile=True, **SETTINGS)
    return top


def test_losses_are_those_of_the_loop_without(runs: Path) -> None:
    for metric in ("loss", "grad_norm"):
        plain, compiled = column(runs / "plain", metric), column(runs / "compiled", metric)
        assert len(compiled) == 3
        assert compiled == pytest.approx(plain, rel=1e-4), metric


def test_checkpoints_have_the_same_names(runs: Path) -> None:
    """A run may be given kernels, or lose them, between two starts."""
    assert tensors(runs / "compiled").keys() == tensors(runs / "plain").keys()


def test_interrupted_it_ends_with_the_same_bytes(runs: Path) -> None:
    whole, other = tensors(runs / "compiled"), tensors(runs / "interrupted")
    assert all(torch.equal(whole[each], other[each]) for each in whole)
    assert column(runs / "compiled", "loss") == column(runs / "interrupted", "loss")
