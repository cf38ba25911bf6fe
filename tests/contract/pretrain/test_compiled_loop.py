"""The loop with compiled kernels: near to the loop without, alone and by two trainers, and the same bytes after an
interruption."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.pretrain.test_half_precision import column, tensors, train_one
from tests.fixtures.kernels import needs_compiler
from tests.fixtures.pretrain_trainers import run_trainers
from torch._dynamo.utils import counters

from giornata.pretrain.feeding.examples import pieces
from giornata.pretrain.feeding.feed import Feed
from giornata.protocol.pretraining import Parallel

pytestmark = [needs_compiler, pytest.mark.long, pytest.mark.timeout(1200)]
SETTINGS: dict[str, Any] = {"samples": (24,)}
SPREAD = (Parallel.DDP, Parallel.FSDP2)


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


def test_rows_of_unusual_numbers_make_no_kernels(tmp_path: Path, kernel_directory: Path, runs: Path) -> None:
    """Rows that cannot be read make steps of 7, 6 and 5 rows, and the last step has 4: these run without kernels."""
    one, before = tmp_path / "one", graphs()
    train_one(one, torch_compile=True, samples=(8,))
    kinds = graphs() - before
    before = graphs()
    train_one(tmp_path / "ragged", torch_compile=True, samples=(36,), change=without)
    assert graphs() - before == kinds > 0


def without(feed: Feed, number: int) -> Feed:
    """A feed of which `number` rows cannot be read."""
    (rows,) = feed.batches
    kept = next(iter(pieces(rows, len(rows) - number % 4)))
    return replace(feed, batches=[kept], unreadable=rows.uses[len(kept) :])


def names(folder: Path) -> set[str]:
    """Of the tensors, in whichever piece of the checkpoint they are."""
    return {name.partition("/")[2] for name in tensors(folder)}


def _two_compiled(rank: int, top: Path, kernels: str) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = kernels  # these processes come from a server that is older
    for parallel in SPREAD:
        before = graphs()
        train_one(top / parallel, rank=rank, world=2, torch_compile=True, parallel=parallel, **SETTINGS)
        assert graphs() > before


def test_two_trainers_with_compiled_kernels_make_what_one_makes(
    runs: Path, kernel_directory: Path, tmp_path: Path
) -> None:
    assert run_trainers(_two_compiled, tmp_path, str(kernel_directory), world=2, meeting=tmp_path / "meeting")
    for parallel in SPREAD:
        for metric in ("loss", "grad_norm"):
            one, two = column(runs / "plain", metric), column(tmp_path / parallel, metric)
            assert two == pytest.approx(one, rel=2e-4), (parallel, metric)
        assert names(tmp_path / parallel) == names(runs / "plain")
