"""Curves in the formats of trackers, read back by the library that wrote TensorBoard's format down."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from tests.fixtures.event_files import events_in
from tests.fixtures.train_rig import RecordingReporter

from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import Stopped
from giornata.workloads.train.results.tracking import TrackerContext, losses_to_keep, report, rows_of, wandb_run


def spec_with(**changes: Any) -> TrainSpec:
    return TrainSpec(**{"pretrained_model_name_or_path": "m", "dataset": "ds_1", "seed": 1, **changes})


def test_tensorboard_gets_the_loss_and_the_rate_of_every_step(tmp_path: Path) -> None:
    spec = spec_with(report_to=("tensorboard",), lr_scheduler="linear", max_train_steps=4, learning_rate=1.0)
    reporter = RecordingReporter()
    report(spec, [0.5, 0.25, 0.125], TrackerContext(job="job_1", directory=tmp_path), reporter)
    (name,) = reporter.artifacts
    assert "tfevents" in name  # TensorBoard looks for files that are called so
    version, *events = events_in(reporter.artifacts[name])
    assert version.file_version == "brain.Event:2"
    assert [event.step for event in events] == [1, 2, 3]
    rows = [{value.tag: value.simple_value for value in event.summary.value} for event in events]
    assert rows == [
        {"train/loss": 0.5, "train/learning_rate": 1.0},
        {"train/loss": 0.25, "train/learning_rate": 0.75},
        {"train/loss": 0.125, "train/learning_rate": 0.5},
    ]


def test_job_without_tracker_keeps_no_losses(tmp_path: Path) -> None:
    reporter = RecordingReporter()
    report(spec_with(), [1.0], TrackerContext(job="job_1", directory=tmp_path), reporter)
    assert not reporter.artifacts
    assert losses_to_keep(spec_with(), [1.0]) == {}
    assert losses_to_keep(spec_with(report_to=["tensorboard"]), [1.0])["log.loss"].tolist() == [1.0]
    assert losses_to_keep(spec_with(report_to=["wandb"]), [1.0])["log.loss"].tolist() == [1.0]


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ValidationError, match="report_to"):
        spec_with(report_to=("nobody",))


def test_diffusers_and_kohyas_ways_to_name_trackers_are_understood() -> None:
    assert spec_with(report_to="wandb").report_to == ("wandb",)
    assert spec_with(log_with="all", log_tracker_name="toys").report_to == ("tensorboard", "wandb")
    assert spec_with(report_to="wandb", log_tracker_name="toys").wandb_project == "toys"


@pytest.mark.parametrize(
    "fields", [{"wandb_project": "p"}, {"wandb_entity": "e"}, {"wandb_run_name": "n"}, {"wandb_api_key_secret": "W"}]
)
def test_fields_of_wandb_mean_nothing_to_other_trackers(fields: dict[str, str]) -> None:
    (name,) = fields
    with pytest.raises(ValidationError, match=f"{name} has no effect without report_to"):
        spec_with(report_to=["tensorboard"], **fields)
    assert spec_with(report_to=["wandb"], **fields)


def test_a_tracker_that_fails_is_an_event_and_the_others_get_theirs(tmp_path: Path) -> None:
    """Where the package cannot begin: its folder is a file."""
    (tmp_path / "wandb-run").write_text("in the way")
    reporter = RecordingReporter()
    spec = spec_with(report_to=["wandb", "tensorboard"])
    report(spec, [1.0], TrackerContext(job="job_1", directory=tmp_path), reporter)
    ((name, data),) = reporter.notices
    assert name == "tracker-failed"
    assert data["tracker"] == "wandb"
    assert "FileExistsError" in data["message"]
    assert len(reporter.artifacts) == 1


def test_the_run_of_a_job_names_no_path_and_each_step_once() -> None:
    secrets = {"wandb_api_key_secret": "SOMEBODY", "hub_token_secret": "SOMEBODY"}
    spec = spec_with(pretrained_model_name_or_path="/somebody/models/base", report_to=["wandb"], rank=3, **secrets)
    run = wandb_run(spec, job="job_1", origin={"giornata.base_sha256": "b"})
    assert (run.id, run.name, run.project) == ("job_1", "job_1", "giornata")
    assert run.config["pretrained_model_name_or_path"] == "base"
    assert (run.config["rank"], run.config["giornata.base_sha256"]) == (3, "b")
    assert "somebody" not in str(run).lower()
    second = (2, {"train/loss": 0.25, "train/learning_rate": 1e-4})
    assert rows_of(spec, [0.5, 0.25]) == [(1, {"train/loss": 0.5, "train/learning_rate": 1e-4}), second]
    assert rows_of(spec, [0.5, 0.25], after=1) == [second]
    assert rows_of(spec, [0.5, 0.25], after=2) == []


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_tracker_process_past_timeout_is_ended(tmp_path: Path) -> None:
    times = iter([0.0, 5.0, 10.0])
    context = TrackerContext(job="job_1", directory=tmp_path, clock=lambda: next(times))
    process = sleeper()
    assert context.wait(process, timeout_s=8.0) is None
    assert process.poll() is not None


def test_request_to_stop_ends_the_command_that_is_waited_for(tmp_path: Path) -> None:
    def attend() -> None:
        raise Stopped(4)

    process = sleeper()
    with pytest.raises(Stopped):
        TrackerContext(job="job_1", directory=tmp_path, attend=attend).wait(process, timeout_s=60.0)
    assert process.poll() is not None


def test_a_key_shows_itself_in_no_record(tmp_path: Path) -> None:
    assert "a-key-of-somebody" not in repr(
        TrackerContext(job="j", directory=tmp_path, api_key=SecretStr("a-key-of-somebody"))
    )
