"""What W&B gets to know of a pre-training run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.pretrain_feeds import tiny_config

from giornata.pretrain.metrics_log import MetricsLog
from giornata.pretrain.storage import Storage
from giornata.pretrain.wandb_curves import wandb_curves
from giornata.protocol.pretraining import Tracking


def test_one_run_over_all_attempts_and_nothing_of_the_machine(tmp_path: Path) -> None:
    run, config = Storage.at(tmp_path), replace(tiny_config(tmp_path), tracking=Tracking(wandb_project="pictures"))
    for steps in ((1, 2), (3,)):  # two attempts
        log = MetricsLog(run, tensorboard=False)
        for step in steps:
            log.add({"step": step, "loss": 1.0 / step})
        log.taken().write()
    found = wandb_curves(config, run)
    assert found.rows == [(step, {"train/loss": 1.0 / step}) for step in (1, 2, 3)]
    assert found.id == wandb_curves(config, run).id
    assert found.id != wandb_curves(config, run / "other").id
    assert str(tmp_path) not in json.dumps([found.name, found.id, dict(found.config)])
    with pytest.raises(ValueError, match="wandb_project"):
        wandb_curves(tiny_config(tmp_path), run)
