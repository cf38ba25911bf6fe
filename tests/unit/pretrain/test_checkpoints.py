"""Checkpoints by themselves: what is written is what was there when it began, and storage may fail for a while."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.fixtures.pretrain_feeds import rows_of, tiny_config

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.ledger import TrainedTwice, UseBits, UseLedger
from giornata.pretrain.run_state.checkpoints import (
    Checkpointer,
    CheckpointsFail,
    Snapshot,
    Uses,
    load_tensors,
    record_uses,
    staging,
)
from giornata.pretrain.run_state.committed import COMMIT, FOLDER, FileFacts, committed, name_of, newest, retire
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingProgress


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpointer]:
    made = Checkpointer(Storage.at(tmp_path / "run"), tmp_path / "scratch", limit=2)
    yield made
    made.close()


def snapshot(tmp_path: Path, value: float, *, step: int, ledger: UseLedger | None = None) -> Snapshot:
    tensors = {"weight.a": torch.full((3, 2), value), "exp_avg.a": torch.full((4,), -value)}
    ledger = ledger or UseLedger(rows_of(tiny_config(tmp_path))[0])
    return Snapshot(tensors=tensors, progress=TrainingProgress(step=step), ledger=ledger)


def loaded(tmp_path: Path) -> float:
    run = Storage.at(tmp_path / "run")
    found = newest(run)
    assert found is not None
    into = {"weight.a": torch.zeros(3, 2)}
    load_tensors(run, found, into, tmp_path, Channel())
    return float(into["weight.a"].mean())


def test_checkpoint_excludes_changes_made_while_it_is_written(tmp_path: Path, checkpoints: Checkpointer) -> None:
    first = snapshot(tmp_path, 1.0, step=1)
    checkpoints.begin(first)
    first.tensors["weight.a"].fill_(9.0)
    first.progress.step = 77
    checkpoints.wait()
    assert loaded(tmp_path) == 1.0
    checkpoints.begin(snapshot(tmp_path, 2.0, step=2))
    checkpoints.wait()
    assert loaded(tmp_path) == 2.0
    assert checkpoints.last == (2, 0)


def test_half_of_another_attempts_checkpoint_does_not_get_into_ours(
    tmp_path: Path, checkpoints: Checkpointer
) -> None:
    run = Storage.at(tmp_path / "run")
    name = f"{FOLDER}/{name_of(1, 0)}"
    run.write(f"{name}/shard-00002-model-00001-of-00001.safetensors", b"another trainer's")
    checkpoints.begin(snapshot(tmp_path, 1.0, step=1))
    checkpoints.wait()
    found = newest(run)
    assert found is not None
    assert run.names(name) == sorted(f"{name}/{file}" for file in (*found.files, COMMIT))
    assert loaded(tmp_path) == 1.0


def test_the_limit_keeps_the_newest_and_clears_what_was_never_finished(
    tmp_path: Path, checkpoints: Checkpointer
) -> None:
    run = Storage.at(tmp_path / "run")
    run.write(f"{FOLDER}/step-00000000-phase-0/shard-00001.safetensors", b"half")
    for step in (1, 2, 3):
        checkpoints.begin(snapshot(tmp_path, float(step), step=step))
    checkpoints.wait()
    assert [each.step for each in committed(run)] == [3, 2]
    assert len({name.split("/")[1] for name in run.names(FOLDER)}) == 2
    retire(run, limit=1)
    assert [each.step for each in committed(run)] == [3]


def test_storage_that_fails_for_a_while_loses_no_row(tmp_path: Path, checkpoints: Checkpointer) -> None:
    """A file is where the folder should be."""
    run, ledger = Storage.at(tmp_path / "run"), UseLedger(rows_of(tiny_config(tmp_path))[0])
    portion = next(iter(ledger.remaining()))
    rows = list(portion.rows)
    run.write(FOLDER, b"in the way")
    for step in (1, 2):
        made = snapshot(tmp_path, 1.0, step=step, ledger=ledger)
        uses = Uses(trained=[(portion.number, rows[step])])
        checkpoints.begin(
            Snapshot(
                tensors=made.tensors,
                progress=made.progress,
                ledger=ledger,
                uses=uses,
            )
        )
    checkpoints.wait()
    run.remove(FOLDER)
    checkpoints.begin(snapshot(tmp_path, 3.0, step=3, ledger=ledger))
    checkpoints.wait()
    found = newest(run)
    assert found is not None
    assert UseLedger.from_json(found.progress(run).ledgers[0], rows_of(tiny_config(tmp_path))[0]).done == 2


def test_storage_that_goes_on_failing_ends_the_run(tmp_path: Path, checkpoints: Checkpointer) -> None:
    Storage.at(tmp_path / "run").write(FOLDER, b"in the way")
    with pytest.raises(CheckpointsFail, match="3 checkpoints in a row"):
        for step in range(5):
            checkpoints.begin(snapshot(tmp_path, 1.0, step=step))


def test_facts_are_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    one = FileFacts.of(path)
    path.write_bytes(b"abd")
    assert one.bytes == 3
    assert FileFacts.of(path) != one


def test_a_gpus_tensors_are_staged_in_pinned_memory_without_waiting_for_each() -> None:
    there, here = staging(torch.device("cuda")), staging(torch.device("cpu"))
    assert (there.use_pinned_memory, there.use_non_blocking_copy) == (True, True)
    assert (here.use_pinned_memory, here.use_non_blocking_copy) == (False, False)


class TrainerChannel:
    """A channel between two trainers, as the one of this rank sees it. The other one trained `others`."""

    world = 2

    def __init__(self, rank: int, others: Uses, first_says: object = None) -> None:
        self.rank, self._others, self._first_says = rank, others, first_says

    def to_first(self, mine: object) -> list[object]:
        others = UseBits.of(self._others.trained), UseBits.of(self._others.quarantined)
        return [mine, others] if self.rank == 0 else []

    def gather_objects(self, mine: object) -> list[object]:
        return [mine if self.rank == 0 else self._first_says, None]


def test_first_trainer_records_the_uses_of_all_and_all_hear_of_a_row_trained_twice(tmp_path: Path) -> None:
    ledger = UseLedger(rows_of(tiny_config(tmp_path))[0])
    portion = next(iter(ledger.remaining()))
    one, two, *_ = ((portion.number, row) for row in portion.rows)
    record_uses(ledger, Uses(trained=[one]), TrainerChannel(0, Uses(quarantined=[two])))  # type: ignore[arg-type]
    assert (ledger.done, ledger.quarantined) == (2, 1)
    with pytest.raises(TrainedTwice) as told:
        record_uses(ledger, Uses(), TrainerChannel(0, Uses(trained=[one])))  # type: ignore[arg-type]
    with pytest.raises(TrainedTwice):
        record_uses(None, Uses(), TrainerChannel(1, Uses(), told.value))  # type: ignore[arg-type]
    record_uses(None, Uses(trained=[one]), TrainerChannel(1, Uses()))  # type: ignore[arg-type]
