"""The loop with compiled kernels: near to the loop without, alone and by two trainers, and the same bytes after an
interruption."""

import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.pretrain.test_half_precision import column, tensors, train_one
from tests.fixtures.kernels import needs_compiler
from tests.fixtures.pretrain_feeds import pinned_feeds, run_of, tiny_config
from tests.fixtures.pretrain_trainers import run_trainers
from torch._dynamo.utils import counters
from torch.nn.functional import interpolate

from giornata.pretrain.encoding.transforms import Cutting
from giornata.pretrain.feeding.examples import pieces
from giornata.pretrain.feeding.feed import Batch, Feed
from giornata.pretrain.run_state.progress import TrainingOutcome
from giornata.pretrain.training.loop import train
from giornata.protocol.pretraining import LATENT_SIDE_PX, Parallel, PretrainConfig

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


def test_buckets_compile_at_most_two_sets_of_kernels_for_each_size(tmp_path: Path, kernel_directory: Path) -> None:
    """Rows of two buckets, each in passes of 3, 2 and 1 rows: passes of 3 and 2 rows are usual in this phase."""

    def made(name: str, change: Callable[[Feed, int], Feed]) -> int:
        before, folder = graphs(), tmp_path / name
        config = bucket_config(folder)
        assert train(run_of(config, folder, feeds=pinned_feeds(config, change=change))) is TrainingOutcome.FINISHED
        return graphs() - before

    of_a_size = made("square", lambda feed, _: feed)  # steps of 3, 3 and 2 rows: two sets
    in_all = made("buckets", in_buckets)
    assert of_a_size < in_all <= len(SHARES[0]) * of_a_size


def bucket_config(folder: Path) -> PretrainConfig:
    config = tiny_config(folder, samples=(8 * len(SHARES),), checkpoint_steps=50, torch_compile=True)
    phase = replace(config.phases[0], resolution=32, train_batch_size=3)
    return replace(config, phases=(phase,), data=replace(config.data, enable_bucket=True, bucket_reso_steps=16))


SHARES = ((3, 5), (7, 1), (2, 6))
"""Of the 8 rows of a step, so many are of each bucket."""


def in_buckets(feed: Feed, number: int) -> Feed:
    """A feed whose rows have the sizes of the first buckets of `bucket_config`."""
    cutting = Cutting.of(bucket_config(Path()).data, seed=0, resolution=32)
    (rows,), start, batches = feed.batches, 0, []
    for (height, width), count in zip(cutting.buckets, SHARES[number], strict=False):
        size = height // LATENT_SIDE_PX, width // LATENT_SIDE_PX
        part = {name: value[start : start + count] for name, value in vars_of(rows).items()}
        part |= {name: interpolate(part[name].float(), size).half() for name in ("mean_BCHW", "logvar_BCHW")}
        batches.append(Batch(**part))
        start += count
    return replace(feed, batches=batches)


def vars_of(rows: Batch) -> dict[str, Any]:
    return {each.name: getattr(rows, each.name) for each in fields(rows)}


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
