"""Curves in the formats of trackers, read back by the library that wrote TensorBoard's format down."""

import struct
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tensorboardX.proto.event_pb2 import Event
from tests.fixtures.train_studio import RecordingReporter

from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.tracking import losses_to_keep, report


def spec_with(**changes: Any) -> TrainSpec:
    return TrainSpec(pretrained_model_name_or_path="m", dataset="ds_1", seed=1, **changes)


def events_in(content: bytes) -> list[Event]:
    """TFRecord: length (8 bytes), its checksum (4), data, checksum (4)."""
    found, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        event = Event()
        event.ParseFromString(content[at + 12 : at + 12 + length])
        found.append(event)
        at += 16 + length
    return found


def test_tensorboard_gets_the_loss_and_the_rate_of_every_step(tmp_path: Path) -> None:
    spec = spec_with(report_to=("tensorboard",), lr_scheduler="linear", max_train_steps=4, learning_rate=1.0)
    reporter = RecordingReporter()
    report(spec, [0.5, 0.25, 0.125], tmp_path, reporter)
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


def test_who_reports_to_nobody_keeps_nothing(tmp_path: Path) -> None:
    reporter = RecordingReporter()
    report(spec_with(), [1.0], tmp_path, reporter)
    assert not reporter.artifacts
    assert losses_to_keep(spec_with(), [1.0]) == {}
    assert losses_to_keep(spec_with(report_to=["tensorboard"]), [1.0])["log.loss"].tolist() == [1.0]


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ValidationError, match="report_to"):
        spec_with(report_to=("nobody",))
