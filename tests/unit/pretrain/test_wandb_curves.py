"""What W&B gets to know of a pre-training run."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.pretrain_feeds import tiny_config

from giornata.diffusion.wandb_run import MOST_ROWS, TrackerFailed, thinned
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.evaluations import keep
from giornata.pretrain.training.committed import Committed
from giornata.pretrain.training.metrics_log import MetricsLog
from giornata.pretrain.wandb_curves import meanwhile, steps_of, wandb_curves
from giornata.protocol.pretraining import Evaluate, Tracking


def test_one_run_over_all_attempts_and_nothing_of_the_machine(tmp_path: Path) -> None:
    evaluate = Evaluate(clip=str(tmp_path / "clip"), inception=str(tmp_path / "inception.pt"))
    tracking = Tracking(wandb_project="pictures")
    run, config = Storage.at(tmp_path), replace(tiny_config(tmp_path), tracking=tracking, evaluate=evaluate)
    for steps in ((1, 2), (3,)):  # two attempts
        log = MetricsLog(run, tensorboard=False)
        for step in steps:
            log.add({"step": step, "loss": 1.0 / step})
        log.taken().write()
    found = wandb_curves(config, run)
    assert found.rows == [(step, {"train/loss": 1.0 / step}) for step in (1, 2, 3)]
    made = Committed(name="step-00000002-phase-0", step=2, phase=0, files={})
    keep(run, made, {"step": 2, "cmmd": 0.5}, tensorboard=False)
    assert wandb_curves(config, run).rows[1] == (2, {"train/loss": 0.5, "evaluation/cmmd": 0.5})
    assert found.id == wandb_curves(config, run).id
    assert found.id != wandb_curves(config, run / "other").id
    assert str(tmp_path) not in json.dumps([found.name, found.id, dict(found.config)])
    with pytest.raises(ValueError, match="wandb_project"):
        wandb_curves(tiny_config(tmp_path), run)


PATIENCE_S = 60.0


def test_curves_go_out_again_and_again_and_no_longer_than_the_run() -> None:
    calls: list[threading.Event] = []
    third = threading.Event()

    def send(stop: threading.Event) -> None:
        calls.append(stop)
        if len(calls) == 3:
            third.set()

    with meanwhile(send, every_s=0.0, tell=pytest.fail):
        assert third.wait(PATIENCE_S)
        assert not calls[0].is_set()
    after = len(calls)
    assert calls[0].is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "wandb-curves"]
    assert len(calls) == after


@pytest.mark.parametrize("failure", [TrackerFailed("no server"), OSError("no storage")])
def test_what_fails_is_told_and_tried_again(failure: Exception) -> None:
    told: list[str] = []
    sent = threading.Event()

    def send(_stop: threading.Event) -> None:
        if not told:
            raise failure
        sent.set()

    with meanwhile(send, every_s=0.0, tell=told.append):
        assert sent.wait(PATIENCE_S)
    assert told == [f"the curves were not sent, but will be: {failure}"]


def test_what_the_end_of_the_run_cuts_short_is_no_failure() -> None:
    told: list[str] = []
    begun = threading.Event()

    def send(stop: threading.Event) -> None:
        begun.set()
        assert stop.wait(PATIENCE_S)
        raise TrackerFailed("was ended")

    with meanwhile(send, every_s=0.0, tell=told.append):
        assert begun.wait(PATIENCE_S)
    assert told == []


def test_rows_of_a_long_run_are_at_their_places_from_the_beginning(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, samples=(20, 20))
    assert steps_of(config) == 6  # 8, 8, 4 twice
    total = 3 * MOST_ROWS
    every = [(step, {"loss": 1.0}) for step in range(1, total + 1)]
    whole = thinned(every, of=total)
    for part in (1, 2, 100, MOST_ROWS + 7, total - 1):
        found = thinned(every[:part], of=total)
        assert found[:-1] == whole[: len(found) - 1]
        assert found[-1] == every[part - 1]
    assert thinned(every) == whole
