"""Two trainers make what one makes: replicated or sharded, with uneven shares, from checkpoints of either."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.pretrain_feeds import pinned_feeds, rows_of, run_of, tiny_config, uses_of
from torch import distributed, multiprocessing

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.ledger import UseLedger
from giornata.pretrain.run_state.committed import newest
from giornata.pretrain.run_state.metrics_log import metrics_of
from giornata.pretrain.run_state.progress import TrainingOutcome
from giornata.pretrain.training.export import export
from giornata.pretrain.training.loop import train
from giornata.protocol.pretraining import Parallel, PretrainConfig

pytestmark = pytest.mark.long

WORLD = 2


def config_of(folder: Path, parallel: Parallel) -> PretrainConfig:
    optimizer = "muon" if folder.name.startswith("muon") else "adamw"
    return tiny_config(folder, parallel=parallel, validation_steps=4, checkpoint_steps=50, optimizer=optimizer)


def train_one(
    folder: Path,
    parallel: Parallel,
    *,
    rank: int = 0,
    world: int = 1,
    stop_before: int | None = None,
    node_size: int | None = None,
) -> None:
    """One trainer. The passes of all but the first are smaller, and the last one alone hears of the preemption."""
    config, asked = config_of(folder, parallel), iter(range(1000))
    if rank:
        config = replace(config, phases=tuple(replace(each, train_batch_size=3) for each in config.phases))
    held = next(iter(pinned_feeds(config)(0, UseLedger(rows_of(config)[0])))).batches[0]
    run = run_of(
        config,
        folder,
        start=newest(Storage.at(folder)),
        feeds=pinned_feeds(config, rank=rank, world=world),
        held=lambda _: [held] if rank == 0 else [],
        preempted=lambda: next(asked) == stop_before and rank == world - 1,
        node_size=node_size,
    )
    outcome = train(run)
    assert (outcome is TrainingOutcome.PREEMPTED) == (stop_before is not None)


def _in_group(rank: int, meeting: str, plan: tuple[tuple[str, Parallel, int | None, int | None], ...]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    try:
        for folder, parallel, stop, size in plan:
            train_one(Path(folder), parallel, rank=rank, world=WORLD, stop_before=stop, node_size=size)
    finally:
        distributed.destroy_process_group()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole run of each kind, of HSDP with a node for each; and one by one trainer, then two, then one."""
    top = tmp_path_factory.mktemp("runs")
    for name in ("one", "resized", "muon-one"):
        (top / name).mkdir()
    train_one(top / "one", Parallel.DDP)
    train_one(top / "muon-one", Parallel.DDP)
    train_one(top / "resized", Parallel.FSDP2, stop_before=1)
    plan = (
        (str(top / "ddp"), Parallel.DDP, None, None),
        (str(top / "fsdp2"), Parallel.FSDP2, None, None),
        (str(top / "muon-fsdp2"), Parallel.FSDP2, None, None),
        (str(top / "apart"), Parallel.HSDP, None, 1),
        (str(top / "resized"), Parallel.HSDP, 3, None),
    )
    multiprocessing.spawn(_in_group, args=(str(top / "meeting"), plan), nprocs=WORLD)
    train_one(top / "resized", Parallel.DDP)
    return top


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "apart", "resized"])
def test_losses_and_weights_are_those_of_one_trainer(runs: Path, kind: str, tmp_path: Path) -> None:
    one, other = (list(metrics_of(Storage.at(runs / each))) for each in ("one", kind))
    assert [row["step"] for row in other] == list(range(1, 7))
    for name in ("loss", "grad_norm", "learning_rate", "samples"):
        assert [row[name] for row in other] == pytest.approx([row[name] for row in one], rel=2e-4), name
    assert other[3]["validation_loss"] == pytest.approx(one[3]["validation_loss"], rel=1e-3)
    for each in ("one", kind):
        export(config_of(runs / each, Parallel.DDP), Storage.at(runs / each), tmp_path / each)
    from diffusers import UNet2DConditionModel

    exported = [UNet2DConditionModel.from_pretrained(tmp_path / each / "unet") for each in ("one", kind)]
    for mine, its in zip(*(model.parameters() for model in exported), strict=True):
        torch.testing.assert_close(its, mine, rtol=0, atol=2e-3)
    assert "20 pictures" in (tmp_path / kind / "README.md").read_text()


def test_muon_trains_sharded_matrices_as_whole_ones(runs: Path) -> None:
    one, other, adamw = (list(metrics_of(Storage.at(runs / each))) for each in ("muon-one", "muon-fsdp2", "one"))
    assert [row["loss"] for row in other] == pytest.approx([row["loss"] for row in one], rel=2e-3)
    assert one[-1]["loss"] != pytest.approx(adamw[-1]["loss"], rel=1e-3), "it is another optimizer"


def test_every_row_once_whatever_the_number_of_trainers(runs: Path) -> None:
    run = Storage.at(runs / "resized")
    found = newest(run)
    assert found is not None
    progress = found.progress(run)
    assert progress.phase == 2
    for ledger, phase in zip(progress.ledgers, rows_of(config_of(runs, Parallel.DDP)), strict=True):
        assert len(list(uses_of(UseLedger.from_json(ledger, phase)))) == phase.samples


def test_shards_are_written_by_both(runs: Path) -> None:
    found = newest(Storage.at(runs / "fsdp2"))
    assert found is not None
    shards = {name: facts.bytes for name, facts in found.files.items() if name.endswith(".safetensors")}
    assert len(shards) == WORLD
    assert min(shards.values()) > 0.4 * max(shards.values())
