"""The loop of one trainer: whatever interrupts it, it ends with the same bytes, and every row is trained once."""

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.fixtures.pretrain_feeds import pinned_feeds, rows_of, run_of, tiny_config, uses_of

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.feed import Feed
from giornata.pretrain.feeding.ledger import TrainedTwice, UseLedger
from giornata.pretrain.run_state.committed import COMMIT, FOLDER, CheckpointDamaged, committed, newest
from giornata.pretrain.run_state.metrics_log import metrics_of
from giornata.pretrain.run_state.progress import TrainingOutcome
from giornata.pretrain.training.loop import RowsMissing, TooManyUnreadable, train
from giornata.pretrain.training.trainer import TooManyBadSteps
from giornata.protocol.pretraining import PretrainConfig


class KilledTrainer(Exception):
    """As if the process had ended."""


def dying(config: PretrainConfig, *, phase: int, feed: int) -> Any:
    """Feeds that end the process instead of giving the feed of that number in that phase."""
    sound = pinned_feeds(config)

    def feeds(place: int, ledger: UseLedger) -> Iterator[Feed]:
        for number, each in enumerate(sound(place, ledger)):
            if (place, number) == (phase, feed):
                raise KilledTrainer
            yield each

    return feeds


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the newest checkpoint."""
    found = newest(Storage.at(folder))
    assert found is not None
    paths = sorted((folder / FOLDER / found.name).glob("*.safetensors"))
    return {name: tensor for path in paths for name, tensor in load_file(path).items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def go_on(config: PretrainConfig, folder: Path, **given: Any) -> TrainingOutcome:
    return train(run_of(config, folder, start=newest(Storage.at(folder)), **given))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert train(run_of(tiny_config(folder), folder)) is TrainingOutcome.FINISHED
    return folder


def test_every_row_is_trained_once_and_the_loss_falls(uninterrupted: Path) -> None:
    run, config = Storage.at(uninterrupted), tiny_config(uninterrupted)
    found = newest(run)
    assert found is not None
    progress = found.progress(run)
    assert (progress.phase, progress.samples, progress.step) == (2, 40, 6)
    for ledger, phase in zip(progress.ledgers, rows_of(config), strict=True):
        uses = Counter(uses_of(UseLedger.from_json(ledger, phase)))
        assert uses.total() == phase.samples
        assert set(uses.values()) == {1}
    rows = list(metrics_of(run))
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert rows[2]["samples"] == 20  # 8, 8, 4
    assert all(row["images_per_s"] > 0 for row in rows)
    assert len(list(committed(run))) == config.train.checkpoints_total_limit
    assert not list((uninterrupted / "scratch").rglob("*.safetensors"))


@pytest.mark.parametrize(("phase", "feed"), [(0, 0), (0, 2), (1, 0), (1, 2)])
def test_a_killed_run_ends_with_the_same_bytes(tmp_path: Path, uninterrupted: Path, phase: int, feed: int) -> None:
    config = tiny_config(tmp_path)
    with pytest.raises(KilledTrainer):
        train(run_of(config, tmp_path, feeds=dying(config, phase=phase, feed=feed)))
    start = newest(Storage.at(tmp_path))
    assert (start is None) == ((phase, feed) == (0, 0))
    if phase == 1:
        assert start is not None
        assert start.phase == 1
    assert go_on(config, tmp_path) is TrainingOutcome.FINISHED
    assert same(weights(tmp_path), weights(uninterrupted))
    losses = [[row["loss"] for row in metrics_of(Storage.at(each))] for each in (tmp_path, uninterrupted)]
    assert losses[0] == losses[1]


def test_killed_between_files_and_commit(
    tmp_path: Path, uninterrupted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What lies there without its list is no checkpoint, and does not get into the one that is written over it."""
    config = tiny_config(tmp_path)
    with pytest.raises(KilledTrainer):
        train(run_of(config, tmp_path, feeds=dying(config, phase=1, feed=2)))
    run = Storage.at(tmp_path)
    last, before = list(committed(run))[:2]
    run.remove(f"{FOLDER}/{last.name}/{COMMIT}")
    run.write(f"{FOLDER}/{last.name}/shard-00002-model-00001-of-00001.safetensors", b"another trainer's")
    with caplog.at_level(logging.WARNING):
        assert newest(run) == before
    assert "was not finished" in caplog.text
    assert go_on(config, tmp_path) is TrainingOutcome.FINISHED
    assert same(weights(tmp_path), weights(uninterrupted))


@pytest.mark.parametrize("damage", ["bytes", "size"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, uninterrupted: Path, damage: str) -> None:
    config, run = tiny_config(tmp_path), Storage.at(tmp_path)
    with pytest.raises(KilledTrainer):
        train(run_of(config, tmp_path, feeds=dying(config, phase=1, feed=2)))
    last, before = list(committed(run))[:2]
    path = next((tmp_path / FOLDER / last.name).glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content if damage == "bytes" else content[:-1])
    if damage == "bytes":
        with pytest.raises(CheckpointDamaged, match=last.name):
            go_on(config, tmp_path)
    assert newest(run) == before
    assert go_on(config, tmp_path) is TrainingOutcome.FINISHED
    assert same(weights(tmp_path), weights(uninterrupted))


def test_a_notice_of_preemption_loses_nothing(tmp_path: Path, uninterrupted: Path) -> None:
    config, asked = tiny_config(tmp_path), Counter[str]()

    def preempted() -> bool:
        asked["times"] += 1
        return asked["times"] == 2

    assert train(run_of(config, tmp_path, preempted=preempted)) is TrainingOutcome.PREEMPTED
    found = newest(Storage.at(tmp_path))
    assert found is not None
    assert found.step == 1  # between two of those that are due
    assert go_on(config, tmp_path) is TrainingOutcome.FINISHED
    assert same(weights(tmp_path), weights(uninterrupted))


def test_a_step_is_saved_once(tmp_path: Path) -> None:
    """Nothing was trained since: to write it again would take the checkpoint away meanwhile."""
    config, asked = tiny_config(tmp_path, samples=(24,), checkpoint_steps=1), Counter[str]()

    def preempted() -> bool:
        asked["times"] += 1
        return asked["times"] >= 2

    def commits() -> dict[str, int]:
        return {str(path): path.stat().st_ino for path in (tmp_path / FOLDER).rglob(COMMIT)}

    assert train(run_of(config, tmp_path, preempted=preempted)) is TrainingOutcome.PREEMPTED
    before = commits()
    assert len(before) == 1
    assert go_on(config, tmp_path, preempted=preempted) is TrainingOutcome.PREEMPTED
    assert commits() == before


def test_going_on_with_another_configuration_or_data_is_refused(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, samples=(16,))
    train(run_of(config, tmp_path))
    start = newest(Storage.at(tmp_path))
    with pytest.raises(InvalidInput, match="configuration of seed"):
        train(run_of(tiny_config(tmp_path, samples=(16,), global_batch_size=4), tmp_path, start=start))
    # The pace and what comes later may change.
    longer = tiny_config(tmp_path, samples=(16, 8), checkpoint_steps=1)
    assert train(run_of(longer, tmp_path, start=start)) is TrainingOutcome.FINISHED


def test_rows_that_come_twice_or_never_end_the_run(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, samples=(16,))
    first: list[Feed] = []

    def again(feed: Feed, number: int) -> Feed:
        first.append(feed)
        return first[0]

    with pytest.raises(TrainedTwice):
        train(run_of(config, tmp_path / "twice", feeds=pinned_feeds(config, change=again)))

    def lost(feed: Feed, number: int) -> Feed:
        return Feed(batches=(), unreadable=()) if number else feed

    with pytest.raises(RowsMissing, match="8 rows of phase 0"):
        train(run_of(config, tmp_path / "never", feeds=pinned_feeds(config, change=lost)))
    assert go_on(config, tmp_path / "never") is TrainingOutcome.FINISHED  # what was fed is not trained again
    assert [row["samples"] for row in metrics_of(Storage.at(tmp_path / "never"))] == [8, 16]
    assert any(each.step == 1 for each in committed(Storage.at(tmp_path / "never")))


def test_rows_that_cannot_be_read_are_recorded_and_bounded(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, samples=(40,))
    first = next(iter(rows_of(config)[0].portions()))
    few = [(first.number, row) for row in list(first.rows)[:3]]
    assert (
        train(run_of(config, tmp_path / "few", feeds=pinned_feeds(config, unreadable=few)))
        is TrainingOutcome.FINISHED
    )
    run = Storage.at(tmp_path / "few")
    found = newest(run)
    assert found is not None
    progress = found.progress(run)
    assert progress.samples == 37
    assert UseLedger.from_json(progress.ledgers[0], rows_of(config)[0]).quarantined == 3
    many = [(portion.number, row) for portion in rows_of(config)[0].portions() for row in portion.rows][:17]
    with pytest.raises(TooManyUnreadable, match=r"data\.max_quarantined_share"):
        train(run_of(config, tmp_path / "many", feeds=pinned_feeds(config, unreadable=many)))


def broken(feed: Feed) -> Feed:
    """Its first batch is not a number any more."""
    first = feed.batches[0]
    first.mean_BCHW[0] = float("nan")
    return feed


def test_a_step_that_is_no_number_is_left_out_and_its_rows_are_not_trained_again(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, samples=(36,))

    def spoil(feed: Feed, number: int) -> Feed:
        return broken(feed) if number == 1 else feed

    assert train(run_of(config, tmp_path, feeds=pinned_feeds(config, change=spoil))) is TrainingOutcome.FINISHED
    run = Storage.at(tmp_path)
    found = newest(run)
    assert found is not None
    progress = found.progress(run)
    assert (progress.skipped_steps, progress.skipped_rows, progress.samples) == (1, 8, 28)
    assert UseLedger.from_json(progress.ledgers[0], rows_of(config)[0]).quarantined == 8
    assert all(bool(tensor.isfinite().all()) for tensor in weights(tmp_path).values())
    with pytest.raises(TooManyBadSteps, match="3 steps in a row"):
        always = pinned_feeds(config, change=lambda feed, _: broken(feed))
        train(run_of(config, tmp_path / "always", feeds=always))


def test_the_average_begins_late(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, samples=(32,), ema_start_samples=20)
    train(run_of(config, tmp_path))
    run = Storage.at(tmp_path)
    found = newest(run)
    assert found is not None
    assert found.progress(run).ema_steps == 2  # after 24 and 32
    tensors = weights(tmp_path)
    assert any(not torch.equal(tensors[f"ema.{n[7:]}"], each) for n, each in tensors.items() if n[:7] == "weight.")


def test_validation_is_of_the_averages_and_changes_nothing(tmp_path: Path, uninterrupted: Path) -> None:
    config = tiny_config(tmp_path, validation_steps=3)
    reported: list[dict[str, float]] = []
    held = next(iter(pinned_feeds(config)(0, UseLedger(rows_of(config)[0])))).batches
    given = {"held": lambda _: held, "report": lambda row: reported.append(dict(row))}
    assert train(run_of(config, tmp_path, **given)) is TrainingOutcome.FINISHED
    assert [row["step"] for row in reported if "validation_loss" in row] == [3, 6]
    assert same(weights(tmp_path), weights(uninterrupted))
