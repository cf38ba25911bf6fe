"""A run's curves by the package wandb itself, sent while they grow to a server that this test plays."""

import time
from dataclasses import replace
from pathlib import Path

from pydantic import SecretStr
from tests.fixtures.pretrain_feeds import tiny_config
from tests.fixtures.pretrain_metrics import log_rows, progress
from tests.fixtures.wandb_server import wandb_server

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.reporting.trackers import Trackers, wandb_run
from giornata.protocol.pretraining import Tracking

KEY = SecretStr("0123456789abcdef0123456789abcdef01234567")
PATIENCE_S = 120.0


def test_a_run_that_crashes_is_one_run_whose_every_step_is_there_once_at_its_time(tmp_path: Path) -> None:
    """The trainers crash after step 3 and train it again; then another command goes on from step 2."""
    config = replace(tiny_config(tmp_path), tracking=Tracking(wandb_project="pictures"))
    run, told = Storage.at(tmp_path / "run"), list[str]()
    with wandb_server() as server:
        for number, steps in enumerate(((1, 2, 3, 3), (3, 4, 5))):
            folder = tmp_path / f"command-{number}"
            folder.mkdir()
            trackers = Trackers(config, run, folder, api_key=KEY, tell=told.append, base_url=server.url)
            for step in steps:
                trackers(progress(step))
            until_s = time.monotonic() + PATIENCE_S
            while not any(len(lines) > 2 * number + 1 for lines in server.history.values()):
                assert time.monotonic() < until_s, "W&B gets rows before the command ends"
                time.sleep(0.05)
            if number == 0:
                log_rows(run, [1, 2, 3])
            trackers.close()
    ((name, lines),) = server.history.items()
    assert name == wandb_run(config, run).id
    found = [(line["_step"], line["_timestamp"]) for _, line in sorted(lines.items())]
    assert found == [(step, 1000.0 + step) for step in (1, 2, 3, 4, 5)]
    assert told == []


def test_wandb_server_that_refuses_is_told_without_the_key(tmp_path: Path) -> None:
    config = replace(tiny_config(tmp_path), tracking=Tracking(wandb_project="pictures"))
    run, told = Storage.at(tmp_path / "run"), list[str]()
    log_rows(run, [1, 2])
    with wandb_server(refuses=True) as server:
        trackers = Trackers(config, run, tmp_path, api_key=KEY, tell=told.append, base_url=server.url)
        trackers.close()
    assert "invalid key" in told[-1]
    assert KEY.get_secret_value() not in str(told)
