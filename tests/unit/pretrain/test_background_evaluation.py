"""Evaluations while a run goes on: one at a time, the newest first, and never in its way."""

import io
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.fixtures.pretrain_feeds import tiny_config

from giornata.domain.errors import GiornataError, InvalidInput
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.evaluation.beside import Evaluations, due, spare_gpu
from giornata.pretrain.evaluation.kept import FOLDER, keep, kept_evaluations, samples_of
from giornata.pretrain.reported import tell
from giornata.pretrain.reporting.progress_lines import TerminalProgress
from giornata.pretrain.run import not_measured
from giornata.pretrain.run_state.committed import CommittedCheckpoint, commit, name_of
from giornata.protocol.pretraining import CheckpointCadence, Evaluate, Mode, PretrainConfig
from giornata.protocol.pretraining_checks import parse


def config_of(folder: Path, **evaluate: Any) -> PretrainConfig:
    """Checkpoints every second step, of which every second is evaluated."""
    config = tiny_config(folder, validation_prompts=("a square",))
    return replace(config, evaluate=Evaluate(**{"checkpoints": 2, **evaluate}))


def checkpoint(run: Storage, step: int, phase: int = 0) -> CommittedCheckpoint:
    made = CommittedCheckpoint(name=name_of(step, phase), step=step, phase=phase, files={})
    commit(run, made)
    return made


class FinishedTask:
    """The task of one checkpoint. Without numbers it is at work."""

    def __init__(self, run: Storage, checkpoint: CommittedCheckpoint, all_trained: bool) -> None:
        self.run, self.checkpoint, self.all_trained = run, checkpoint, all_trained
        self.ends: dict[str, float] | Exception | None = None
        self.canceled = False

    def result(self) -> dict[str, float] | None:
        if isinstance(self.ends, Exception):
            raise self.ends
        if self.ends is not None:
            keep(self.run, self.checkpoint, {"step": self.checkpoint.step, "fid": 0.5})
        return self.ends

    def cancel(self) -> None:
        self.canceled = True


class EvaluatedRun:
    """Evaluations of a run in a folder, with tasks that are played."""

    def __init__(self, folder: Path, **evaluate: Any) -> None:
        self.run, self.tasks, self.told, self.now_s = (
            Storage.at(folder),
            list[FinishedTask](),
            list[dict[str, Any]](),
            0.0,
        )
        self.evaluations = Evaluations(
            config_of(folder, **evaluate), self.run, self._begin, self.told.append, clock_s=lambda: self.now_s
        )

    def _begin(self, checkpoint: CommittedCheckpoint, all_trained: bool) -> FinishedTask:
        self.tasks.append(FinishedTask(self.run, checkpoint, all_trained))
        return self.tasks[-1]

    def saved(self, *steps: int, phase: int = 0) -> None:
        for step in steps:
            checkpoint(self.run, step, phase)
            self.evaluations.news()
        self.evaluations.turn()

    def names(self) -> list[str]:
        return [task.checkpoint.name for task in self.tasks]


@pytest.mark.parametrize(
    ("step", "phase", "before", "wanted"),
    [(4, 0, 0, True), (8, 1, 1, True), (2, 0, 0, False), (5, 0, 0, False), (5, 1, 0, True)],
)
def test_every_nth_checkpoint_and_the_last_of_each_phase_are_evaluated(
    tmp_path: Path, step: int, phase: int, before: int, wanted: bool
) -> None:
    made = CommittedCheckpoint(name="", step=step, phase=phase, files={})
    assert due(config_of(tmp_path), made, (0, before)) is wanted
    assert not due(config_of(tmp_path, checkpoints=0), made, (0, before))


@pytest.mark.parametrize(("step", "before", "wanted"), [(5, 3, True), (7, 5, False), (9, 7, True), (4, 3, True)])
def test_checkpoints_by_time_are_due_once_in_as_many_steps(
    tmp_path: Path, step: int, before: int, wanted: bool
) -> None:
    config = config_of(tmp_path)
    config = replace(config, train=replace(config.train, checkpoint_cadence=CheckpointCadence.YOUNG_DALY))
    assert due(config, CommittedCheckpoint(name="", step=step, phase=0, files={}), (before, 0)) is wanted


def test_the_newest_comes_first_and_what_is_behind_is_left_out(tmp_path: Path) -> None:
    run_rig = EvaluatedRun(tmp_path)
    run_rig.saved(4)
    for step in (6, 8, 12):
        run_rig.saved(step)  # returns although a task is at work
    assert run_rig.names() == [name_of(4, 0)], "one at a time"
    run_rig.tasks[0].ends = {"evaluation/fid": 0.5}
    run_rig.evaluations.turn()
    run_rig.tasks[1].ends = {}
    run_rig.evaluations.turn()
    assert run_rig.names() == [name_of(4, 0), name_of(12, 0)]
    assert [each["checkpoint"] for each in run_rig.told] == [name_of(step, 0) for step in (4, 8, 12)]
    assert (run_rig.told[0]["numbers"], "skipped" in run_rig.told[1]) == ({"evaluation/fid": 0.5}, True)
    assert kept_evaluations(run_rig.run) == [(step, {"evaluation/fid": 0.5}, name_of(step, 0)) for step in (4, 12)]


@pytest.mark.parametrize("failure", [GiornataError("no memory"), OSError("no disk"), RuntimeError("a defect")])
def test_a_failure_is_told_and_the_next_is_evaluated(tmp_path: Path, failure: Exception) -> None:
    run_rig = EvaluatedRun(tmp_path)
    run_rig.saved(4)
    run_rig.tasks[0].ends = failure
    run_rig.evaluations.turn()
    run_rig.saved(8)
    run_rig.tasks[0].ends = {}
    run_rig.evaluations.turn()
    assert run_rig.told[0]["failed"] == str(failure)


def test_evaluation_past_timeout_is_canceled_and_reported(tmp_path: Path) -> None:
    run_rig = EvaluatedRun(tmp_path, timeout_s=10.0)
    run_rig.saved(4)
    run_rig.now_s = 9.0
    run_rig.evaluations.turn()
    assert (run_rig.told, run_rig.tasks[0].canceled) == ([], False)
    run_rig.now_s = 11.0
    run_rig.evaluations.turn()
    assert ("10 s" in run_rig.told[0]["failed"], run_rig.tasks[0].canceled) == (True, True)
    run_rig.saved(8)
    assert run_rig.names() == [name_of(4, 0), name_of(8, 0)]


def test_the_end_of_the_run_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    run_rig = EvaluatedRun(tmp_path)
    run_rig.saved(4)
    run_rig.evaluations.finish(threading.Event(), within_s=-1.0)
    stop = threading.Event()
    stop.set()
    run_rig.evaluations.finish(stop, within_s=60.0)
    run_rig.evaluations.close()
    assert (run_rig.tasks[0].canceled, run_rig.told) == (True, []), "what ends with the run is no failure"


def test_the_last_one_is_waited_for_and_what_another_command_left_is_caught_up(tmp_path: Path) -> None:
    run_rig = EvaluatedRun(tmp_path)
    keep(run_rig.run, checkpoint(run_rig.run, 4), {"step": 4})
    checkpoint(run_rig.run, 7, 1)
    stop = threading.Event()

    class Once(threading.Event):
        """Whoever waits finds the task done."""

        def wait(self, timeout: float | None = None) -> bool:
            run_rig.tasks[0].ends = {}
            return False

    run_rig.evaluations.finish(Once(), within_s=60.0)
    assert (run_rig.names(), run_rig.tasks[0].all_trained) == ([name_of(7, 1)], True)
    run_rig.evaluations.finish(stop, within_s=60.0)
    assert len(run_rig.tasks) == 1, "once"


def test_evaluate_checkpoints_of_zero_starts_no_evaluation(tmp_path: Path) -> None:
    run_rig = EvaluatedRun(tmp_path, checkpoints=0)
    run_rig.saved(4, 8)
    assert (run_rig.tasks, run_rig.told) == ([], [])


@pytest.mark.parametrize(
    ("mode", "there", "all_trained", "wanted"),
    [
        (Mode.OFFLINE, 2.0, False, False),  # two trainers take them
        (Mode.OFFLINE, 3.0, False, True),
        (Mode.ONLINE, 3.0, False, False),  # and an encoder the third
        (Mode.ONLINE, 4.0, False, True),
        (Mode.ONLINE, 1.0, True, True),
        (Mode.OFFLINE, 0.0, True, False),
    ],
)
def test_an_evaluation_gets_a_gpu_that_nobody_else_takes(
    tmp_path: Path, mode: Mode, there: float, all_trained: bool, wanted: bool
) -> None:
    config = config_of(tmp_path)
    workers, encode = replace(config.workers, use_gpu=True, trainers=2), replace(config.encode, mode=mode)
    config = replace(config, workers=workers, encode=encode)
    assert spare_gpu(config, there=there, all_trained=all_trained) is wanted
    waits = replace(config, evaluate=replace(config.evaluate, use_gpu=True))
    assert spare_gpu(waits, there=there, all_trained=all_trained)


def test_samples_and_scores_lie_with_the_run(tmp_path: Path) -> None:
    run, sheet = Storage.at(tmp_path / "run"), tmp_path / "sheet.png"
    Image.new("RGB", (6, 4)).save(sheet)
    made = checkpoint(run, 40)
    keep(run, made, {"step": 40, "fid": 12.5, "cmmd": 0.25, "samples_png": str(sheet)})
    assert samples_of(run, made.name) == sheet.read_bytes()
    assert samples_of(run, name_of(41, 0)) is None
    told = json.loads(run.read(f"{FOLDER}/{made.name}.json"))
    assert told == {"step": 40, "fid": 12.5, "cmmd": 0.25, "samples": f"{made.name}.png"}


def test_not_measured_names_disabled_validation_and_evaluation(tmp_path: Path) -> None:
    blind = not_measured(config_of(tmp_path, checkpoints=0))
    assert ["train.validation_steps = 0" in blind[0], "train.validation_rows = 0" in blind[0]] == [True, True]
    assert "evaluate.checkpoints = 0" in blind[1]
    config = config_of(tmp_path)
    seeing = replace(config, train=replace(config.train, validation_steps=2, validation_rows=4))
    assert not_measured(seeing) == []


def test_people_and_programs_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    about = {"event": "evaluation", "checkpoint": "step-00000004-phase-0"}
    messages = [
        {"event": "note", "words": "no validation loss: train.validation_rows = 0"},
        {**about, "step": 4, "numbers": {"evaluation/clip_score": 21.5}},
        {**about, "step": 4, "numbers": {}},
        {**about, "step": 4, "skipped": "a newer one was due as well"},
        {**about, "failed": "no memory"},
    ]
    words = io.StringIO()
    with TerminalProgress(words) as terminal:
        for message in messages:
            terminal(dict(message))
            tell(dict(message))
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == messages
    for part in ("train.validation_rows = 0", "clip score 21.5", "samples are drawn", "a newer one", "no memory"):
        assert part in words.getvalue()


def test_an_evaluation_of_nothing_is_refused(tmp_path: Path) -> None:
    values = config_of(tmp_path).to_json()
    assert parse(values) == config_of(tmp_path)
    values["train"]["validation_prompts"] = ()
    values["evaluate"] |= {"clip": "a/clip", "rows": 0, "timeout_s": 0, "checkpoints": 1}
    with pytest.raises(InvalidInput) as refused:
        parse(values)
    wheres = {"evaluate.checkpoints", "evaluate.clip", "evaluate.rows", "evaluate.timeout_s"}
    assert {fault.where for fault in refused.value.faults} == wheres
