"""What W&B gets to know of a pre-training run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.pretrain_feeds import tiny_config

from giornata.diffusion.wandb_run import MOST_ROWS, thinned
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.evaluations import keep
from giornata.pretrain.training.committed import Committed
from giornata.pretrain.training.metrics_log import MetricsLog
from giornata.pretrain.wandb_curves import steps_of, wandb_curves
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
