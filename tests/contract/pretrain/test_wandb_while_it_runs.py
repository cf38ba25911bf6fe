"""A run's curves by the package wandb itself: written without a network, and sent twice while they grow to a server
that this test plays."""

import zipfile
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from pydantic import SecretStr
from tests.fixtures.pretrain_feeds import tiny_config
from tests.fixtures.wandb_server import wandb_server

from giornata.diffusion.wandb_run import TrackerFailed
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.training.metrics_log import MetricsLog
from giornata.pretrain.wandb_curves import send_curves, wandb_curves
from giornata.protocol.pretraining import PretrainConfig, Tracking

KEY = SecretStr("0123456789abcdef0123456789abcdef01234567")


def configured(folder: Path) -> tuple[PretrainConfig, Storage]:
    return replace(tiny_config(folder), tracking=Tracking(wandb_project="pictures")), Storage.at(folder / "run")


def train(run: Storage, *steps: int) -> None:
    """As far as the curves know of it: up to a checkpoint."""
    log = MetricsLog(run, tensorboard=False)
    for step in steps:
        log.add({"step": step, "loss": 1.0 / step})
    log.taken().write()


def test_curves_that_are_sent_while_they_grow_are_one_run_with_each_step_once(tmp_path: Path) -> None:
    config, run = configured(tmp_path)
    with wandb_server() as server:
        train(run, 1, 2)
        send_curves(config, run, tmp_path / "first", api_key=KEY, base_url=server.url)
        so_far = {place: line["_step"] for lines in server.history.values() for place, line in lines.items()}
        train(run, 3, 4, 5)
        send_curves(config, run, tmp_path / "second", api_key=KEY, base_url=server.url)
    assert sorted(so_far.values()) == [1, 2]
    ((name, lines),) = server.history.items()
    assert name == wandb_curves(config, run).id
    assert [lines[place]["_step"] for place in sorted(lines)] == [1, 2, 3, 4, 5]
    assert [lines[place]["train/loss"] for place in sorted(lines)] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])


def test_without_a_key_nothing_is_sent_and_the_run_is_kept(tmp_path: Path) -> None:
    config, run = configured(tmp_path)
    train(run, 1, 2)
    kept: list[list[str]] = []

    def keep(packed: Path) -> None:
        with zipfile.ZipFile(packed) as archive:
            kept.append(archive.namelist())

    send_curves(config, run, tmp_path / "out", api_key=None, keep=keep, base_url="http://127.0.0.1:1")
    (names,) = kept
    assert any(name.endswith(f"run-{wandb_curves(config, run).id}.wandb") for name in names)


def test_the_run_is_kept_also_when_it_cannot_be_sent(tmp_path: Path) -> None:
    config, run = configured(tmp_path)
    train(run, 1)
    kept: list[Path] = []
    with wandb_server(refuses=True) as server, pytest.raises(TrackerFailed, match="invalid key"):
        send_curves(config, run, tmp_path / "out", api_key=KEY, base_url=server.url, keep=kept.append)
    assert len(kept) == 1


def test_the_end_of_the_run_ends_what_is_under_way(tmp_path: Path) -> None:
    config, run = configured(tmp_path)
    train(run, 1)
    stop = Event()
    stop.set()
    with pytest.raises(TrackerFailed):
        send_curves(config, run, tmp_path / "out", api_key=None, stop=stop)
