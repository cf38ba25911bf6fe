"""Two nodes of two trainers, which shard among themselves and are replicas of one another: they make what one trainer
makes, and one trainer goes on from their checkpoint."""

from pathlib import Path

import pytest
from tests.contract.pretrain.test_loop_of_two import config_of, train_one
from tests.fixtures.pretrain_feeds import rows_of, uses_of
from torch import distributed, multiprocessing, set_num_threads

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.ledger import UseLedger
from giornata.pretrain.run_state.committed import newest
from giornata.pretrain.run_state.metrics_log import metrics_of
from giornata.protocol.pretraining import Parallel

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
NODES, NODE_SIZE = 2, 2
STOPPED_AT = 4
"""In the second phase."""


def _in_group(rank: int, top: str) -> None:
    set_num_threads(1)
    world = NODES * NODE_SIZE
    distributed.init_process_group("gloo", init_method=f"file://{top}/meeting", rank=rank, world_size=world)
    try:
        for name, stop in (("whole", None), ("passed_on", STOPPED_AT)):
            given = {"rank": rank, "world": world, "stop_before": stop, "node_size": NODE_SIZE}
            train_one(Path(top) / name, Parallel.HSDP, **given)
    finally:
        distributed.destroy_process_group()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One trainer's; two nodes'; and one that began with two nodes and ended with one trainer."""
    top = tmp_path_factory.mktemp("runs")
    for name in ("one", "whole", "passed_on"):
        (top / name).mkdir()
    train_one(top / "one", Parallel.DDP)
    multiprocessing.spawn(_in_group, args=(str(top),), nprocs=NODES * NODE_SIZE)
    train_one(top / "passed_on", Parallel.DDP)
    return top


@pytest.mark.parametrize("kind", ["whole", "passed_on"])
def test_losses_are_those_of_one_trainer(runs: Path, kind: str) -> None:
    one, other = (list(metrics_of(Storage.at(runs / each))) for each in ("one", kind))
    assert [row["step"] for row in other] == list(range(1, 7))
    for name in ("loss", "grad_norm", "samples"):
        assert [row[name] for row in other] == pytest.approx([row[name] for row in one], rel=2e-4), name
    assert other[3]["validation_loss"] == pytest.approx(one[3]["validation_loss"], rel=1e-3)


@pytest.mark.parametrize("kind", ["whole", "passed_on"])
def test_ledger_of_hsdp_run_has_every_row_once(runs: Path, kind: str) -> None:
    run = Storage.at(runs / kind)
    found = newest(run)
    assert found is not None
    for ledger, phase in zip(found.progress(run).ledgers, rows_of(config_of(runs, Parallel.DDP)), strict=True):
        assert len(list(uses_of(UseLedger.from_json(ledger, phase)))) == phase.samples


def test_replicas_are_written_once(runs: Path) -> None:
    bytes_of = {}
    for kind in ("one", "whole"):
        found = newest(Storage.at(runs / kind))
        assert found is not None
        bytes_of[kind] = sum(each.bytes for name, each in found.files.items() if name.endswith(".safetensors"))
    assert bytes_of["whole"] == pytest.approx(bytes_of["one"], rel=0.05)
