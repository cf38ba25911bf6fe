"""bfloat16, by two trainers that are replicas (DDP) and by two that share the model (FSDP2): near to float32, and the
same bytes after an interruption."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tests.fixtures.pretrain_feeds import pinned_feeds, run_of, tiny_config
from tests.fixtures.pretrain_trainers import run_trainers

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.feed import Feed
from giornata.pretrain.run_state.committed import FOLDER, newest
from giornata.pretrain.run_state.metrics_log import metrics_of
from giornata.pretrain.run_state.progress import TrainingOutcome
from giornata.pretrain.training.loop import train
from giornata.protocol.pretraining import Parallel, Precision

pytestmark = pytest.mark.timeout(900)
WORLD, STEPS = 2, 3
SAMPLES = (20,)
SHARED = {Parallel.DDP: "replicas", Parallel.FSDP2: "shards"}


def train_one(
    folder: Path,
    *,
    rank: int = 0,
    world: int = 1,
    stop_before: int | None = None,
    change: Callable[[Feed, int], Feed] = lambda feed, _: feed,
    **settings: Any,
) -> None:
    config, asked = tiny_config(folder, checkpoint_steps=50, **settings), iter(range(1000))
    run = run_of(
        config,
        folder,
        start=newest(Storage.at(folder)),
        feeds=pinned_feeds(config, rank=rank, world=world, change=change),
        preempted=lambda: next(asked) == stop_before,
    )
    assert train(run) is (TrainingOutcome.FINISHED if stop_before is None else TrainingOutcome.PREEMPTED)


def _work(rank: int, top: Path) -> None:
    for parallel, name in SHARED.items():
        for kind, stop in (("whole", None), ("interrupted", 2), ("interrupted", None)):
            given: dict[str, Any] = {"parallel": parallel, "mixed_precision": Precision.BF16, "samples": SAMPLES}
            train_one(top / name / kind, rank=rank, world=WORLD, stop_before=stop, **given)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In float32 by one trainer; in bfloat16 by two of each kind, at once and with an end before the last step."""
    top = tmp_path_factory.mktemp("runs")
    train_one(top / "float32", samples=SAMPLES)
    assert run_trainers(_work, top, world=WORLD, meeting=top / "meeting")
    return top


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Of the newest checkpoint, by shard and name."""
    found = newest(Storage.at(folder))
    assert found is not None
    read = {}
    for path in sorted((folder / FOLDER / found.name).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            read |= {f"{path.name}/{name}": file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return read


def column(folder: Path, name: str) -> list[float]:
    return [row[name] for row in metrics_of(Storage.at(folder))]


@pytest.mark.parametrize("name", SHARED.values())
def test_losses_are_near_to_those_of_float32_and_not_the_same(runs: Path, name: str) -> None:
    for metric in ("loss", "grad_norm"):
        whole, half = column(runs / "float32", metric), column(runs / name / "whole", metric)
        assert len(half) == STEPS
        assert half == pytest.approx(whole, rel=0.05), metric
        assert half != pytest.approx(whole, rel=2e-5), metric  # two trainers in float32 come nearer than this


@pytest.mark.parametrize("name", SHARED.values())
def test_interrupted_it_ends_with_the_same_bytes(runs: Path, name: str) -> None:
    whole, other = tensors(runs / name / "whole"), tensors(runs / name / "interrupted")
    assert whole.keys() == other.keys()
    assert all(torch.equal(whole[each], other[each]) for each in whole)
    assert column(runs / name / "whole", "loss") == column(runs / name / "interrupted", "loss")


@pytest.mark.parametrize("name", SHARED.values())
def test_weights_moments_and_averages_are_float32(runs: Path, name: str) -> None:
    read = tensors(runs / name / "whole")
    assert {each.partition("/")[2].partition(".")[0] for each in read} >= {"weight", "ema"}
    assert {tensor.dtype for tensor in read.values()} == {torch.float32}
    assert any(not torch.equal(each, each.bfloat16().float()) for each in read.values())
