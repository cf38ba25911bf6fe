"""The loop counts dollars from the start of each attempt, and what a lost one cost stays counted."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.pretrain_feeds import pinned_feeds, run_of, tiny_config

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.feed import Feed
from giornata.pretrain.feeding.ledger import UseLedger
from giornata.pretrain.run_state.committed import newest, progress_of
from giornata.pretrain.run_state.costs import FOLDER, TrainerStart, spent_usd
from giornata.pretrain.run_state.metrics_log import metrics_of
from giornata.pretrain.run_state.progress import TrainingOutcome
from giornata.pretrain.training.loop import train
from giornata.protocol.pretraining import PretrainConfig

STARTUP_S, STEP_S = 1000.0, 100.0
STEPS = 6


class KilledLoop(Exception):
    """As if the process had ended."""


class StepClock:
    """Moves by a step's time when a step is done."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def config_of(folder: Path) -> PretrainConfig:
    """A dollar a second, and a checkpoint every second step."""
    config = tiny_config(folder, samples=(8 * STEPS,))
    return replace(config, workers=replace(config.workers, trainer_usd_per_h=3600.0))


def attempt(folder: Path, name: str, *, dies_at: int | None = None) -> TrainingOutcome:
    """One that took 1000 s to begin, and dies before its `dies_at`th step, if it does."""
    config, clock = config_of(folder), StepClock()
    clock.now_s = STARTUP_S

    def feeds(phase: int, ledger: UseLedger) -> Iterator[Feed]:
        for number, each in enumerate(pinned_feeds(config)(phase, ledger)):
            if number == dies_at:
                raise KilledLoop
            yield each

    def traced(*_: Any) -> None:
        clock.now_s += STEP_S

    given: dict[str, Any] = {"feeds": feeds, "traced": traced, "clock_s": clock}
    begun = TrainerStart(name=name, began_s=0.0)
    return train(run_of(config, folder, start=newest(Storage.at(folder)), attempt=begun, **given))


def test_starts_and_undone_steps_are_counted(tmp_path: Path) -> None:
    """Three steps, of which the last is undone; then the four that are left."""
    run = Storage.at(tmp_path)
    with pytest.raises(KilledLoop):
        attempt(tmp_path, "first", dies_at=3)
    assert spent_usd(run, progress_of(run)) == pytest.approx(STARTUP_S + 3 * STEP_S)
    assert progress_of(run).spent_usd == pytest.approx(STARTUP_S + 2 * STEP_S), "of the checkpoint, and too little"
    assert attempt(tmp_path, "second") is TrainingOutcome.FINISHED
    assert spent_usd(run, progress_of(run)) == pytest.approx(2 * STARTUP_S + (STEPS + 1) * STEP_S)
    told = [row["spent_usd"] for row in metrics_of(run)]
    assert told == pytest.approx([1100, 1200, *(2300 + STEP_S * (1 + step) for step in range(4))])
    assert len(run.names(FOLDER)) == 2


def test_a_start_is_no_part_of_a_steps_pace(tmp_path: Path) -> None:
    attempt(tmp_path, "only")
    paces = {row["images_per_s"] for row in metrics_of(Storage.at(tmp_path))}
    assert paces == {8 / STEP_S}
