"""What TensorBoard and W&B get to know of a run while it goes on."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tests.fixtures.pretrain_feeds import tiny_config
from tests.fixtures.pretrain_metrics import log_rows, progress

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.evaluation.kept import keep
from giornata.pretrain.reporting.trackers import EventFiles, TrackedRow, Trackers, history, wandb_run
from giornata.pretrain.run_state.committed import CommittedCheckpoint
from giornata.protocol.pretraining import Evaluate, Tracking


def events_in(run: Storage) -> list[Event]:
    """Of all files, in order. TFRecord: length (8 bytes), its checksum (4), data, checksum (4)."""
    found = []
    for name in run.names("tensorboard"):
        content, at = run.read(name), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            found.append(Event.FromString(content[at + 12 : at + 12 + length]))
            at += 16 + length
    return found


def shown_by_tensorboard(run: Storage) -> dict[int, tuple[float, float]]:
    """(loss, wall time) by step, as TensorBoard shows them: what comes after a start supersedes."""
    found: dict[int, tuple[float, float]] = {}
    for event in events_in(run):
        if event.session_log.status == SessionLog.START:
            found = {step: value for step, value in found.items() if step < event.step}
        for value in event.summary.value:
            if value.tag == "train/loss":
                found[event.step] = value.simple_value, event.wall_time
    return found


def loss(step: int, value: float = 0.5) -> TrackedRow:
    return TrackedRow(step=step, time_s=1000.0 + step, values={"train/loss": value})


def test_event_files_show_every_step_once_at_its_time_after_steps_are_trained_again(tmp_path: Path) -> None:
    run = Storage.at(tmp_path / "run")
    files = EventFiles(run, tmp_path / "scratch", began_s=1, clock_s=lambda: 0.0)
    for step in (1, 2, 3, 4):
        files.add(loss(step))
    files.flush()
    assert shown_by_tensorboard(run).keys() == {1, 2, 3, 4}, "before the file is closed"
    for step in (3, 4, 5):
        files.add(loss(step, 0.25))
    files.close()
    values = {1: 0.5, 2: 0.5, 3: 0.25, 4: 0.25, 5: 0.25}
    assert shown_by_tensorboard(run) == {step: (value, 1000.0 + step) for step, value in values.items()}


def test_a_tracker_that_begins_later_gets_what_lies_in_the_storage(tmp_path: Path) -> None:
    run = Storage.at(tmp_path / "run")
    log_rows(run, [1, 2, 3])
    keep(run, CommittedCheckpoint(name="step-00000002-phase-0", step=2, phase=0, files={}), {"step": 2, "cmmd": 0.5})
    found = [shown.for_wandb() for shown in history(run)]
    assert found[0] == (1, {"train/loss": 1.0, "_timestamp": 1001.0})
    assert found[2] == (2, {"evaluation/cmmd": 0.5, "evaluation/step": 2, "_timestamp": 1002.0})
    assert [step for step, _ in found] == [1, 2, 2, 3]
    assert [shown.step for shown in history(run, up_to=1)] == [1]


def test_steps_beyond_the_newest_checkpoint_wait_until_they_are_trained_again(tmp_path: Path) -> None:
    """Their rows are of an attempt that has crashed. Here no checkpoint exists."""
    run = Storage.at(tmp_path / "run")
    log_rows(run, [1, 2])
    run.write("tensorboard/events.out.tfevents.00000001.giornata", b"of the command before")
    config = replace(tiny_config(tmp_path), tracking=Tracking(tensorboard=True))
    told: list[str] = []
    trackers = Trackers(config, run, tmp_path, api_key=None, tell=told.append)
    for message in (progress(1), {"event": "checkpoint", "step": 1}, progress(2), progress(2), progress(3)):
        trackers(message)
    trackers.close()
    assert told == []
    found = shown_by_tensorboard(run)
    assert found == {step: (pytest.approx(1.0 / step), 1000.0 + step) for step in (1, 2, 3)}


def test_a_tracker_that_fails_is_told_of_and_is_no_failure_of_the_run(tmp_path: Path) -> None:
    run = Storage.at(tmp_path / "run")
    run.write("tensorboard", b"in the way")
    told: list[str] = []
    config = replace(tiny_config(tmp_path), tracking=Tracking(tensorboard=True))
    trackers = Trackers(config, run, tmp_path, api_key=None, tell=told.append)
    trackers(progress(1))
    trackers.close()
    assert len(told) == 1
    assert "curves are not written any more" in told[0]


def test_wandb_gets_to_know_nothing_of_the_machine(tmp_path: Path) -> None:
    evaluate = Evaluate(clip=str(tmp_path / "clip"), inception=str(tmp_path / "inception.pt"))
    tracking = Tracking(wandb_project="pictures")
    run, config = Storage.at(tmp_path), replace(tiny_config(tmp_path), tracking=tracking, evaluate=evaluate)
    found = wandb_run(config, run)
    assert found.id == wandb_run(config, run).id
    assert found.id != wandb_run(config, run / "other").id
    assert str(tmp_path) not in json.dumps([found.name, found.id, dict(found.config)])
    with pytest.raises(ValueError, match="wandb_project"):
        wandb_run(tiny_config(tmp_path), run)


class Remote(Storage):
    """A storage that is no folder: files are copied to it."""

    copied: ClassVar[list[tuple[str, int]]] = []

    def names(self, under: str = "") -> list[str]:
        return []

    def put(self, path: Path, name: str) -> None:
        self.copied.append((name, path.stat().st_size))


def test_event_files_are_copied_to_a_remote_storage_every_ten_seconds_and_at_the_end(tmp_path: Path) -> None:
    now_s = 100.0
    files = EventFiles(Remote("s3://bucket/run"), tmp_path, began_s=1, clock_s=lambda: now_s)
    for second in (0.0, 1.0, 9.0, 10.0, 11.0):
        now_s = 100.0 + second
        files.add(loss(int(second) + 1))
        files.flush()
    files.close()
    sizes = [size for name, size in Remote.copied if name == "tensorboard/events.out.tfevents.1.00000001.giornata"]
    assert len(sizes) == 3, "at 0 s, at 10 s and at the end"
    assert sizes == sorted(set(sizes))
