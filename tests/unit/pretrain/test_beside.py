"""Evaluations beside a run: one at a time, the newest first, and never in its way."""

import io
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.fixtures.pretrain_feeds import tiny_config

from giornata.domain.errors import GiornataError, InvalidInput
from giornata.pretrain.beside import Evaluations, due, ended, evaluating, why_not
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.evaluations import FOLDER, evaluated, keep, kept, samples_of
from giornata.pretrain.progress_lines import Lines, Words
from giornata.pretrain.run import not_measured
from giornata.pretrain.training.committed import Committed, commit, name_of
from giornata.protocol.pretraining import Evaluate, PretrainConfig
from giornata.protocol.pretraining_checks import parse

PATIENCE_S = 60.0
NEWS = {"event": "checkpoint", "step": 0}


def config_of(folder: Path, **evaluate: Any) -> PretrainConfig:
    """Checkpoints every second step, of which every second is evaluated."""
    config = tiny_config(folder, validation_prompts=("a square",))
    return replace(config, evaluate=Evaluate(**{"checkpoints": 2, **evaluate}))


def checkpoint(run: Storage, step: int, phase: int = 0) -> Committed:
    made = Committed(name=name_of(step, phase), step=step, phase=phase, files={})
    commit(run, made)
    return made


class Told:
    """What was told, and a place to wait for it."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def __call__(self, message: dict[str, Any]) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.messages) >= count, PATIENCE_S)


class Evaluator:
    """Plays the program. The first evaluation waits for `free`."""

    def __init__(self, fails: Callable[[str], Exception | None] = lambda _: None) -> None:
        self.began, self.free, self.names, self._fails = threading.Event(), threading.Event(), list[str](), fails
        self.most_at_once = self._at_once = 0

    def __call__(self, checkpoint: Committed, _folder: Path, _stop: threading.Event) -> dict[str, Any]:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        self.names.append(checkpoint.name)
        self.began.set()
        assert self.free.wait(PATIENCE_S)
        self._at_once -= 1
        if (error := self._fails(checkpoint.name)) is not None:
            raise error
        return {"step": checkpoint.step, "validation_loss": 0.5, "clip_score": None}


@pytest.mark.parametrize(
    ("step", "phase", "before", "wanted"),
    [(4, 0, 0, True), (8, 1, 1, True), (2, 0, 0, False), (5, 0, 0, False), (5, 1, 0, True)],
)
def test_every_so_manieth_and_the_end_of_each_phase(
    tmp_path: Path, step: int, phase: int, before: int, wanted: bool
) -> None:
    made = Committed(name="", step=step, phase=phase, files={})
    assert due(config_of(tmp_path), made, before) is wanted
    assert not due(config_of(tmp_path, checkpoints=0), made, before)


def test_the_newest_comes_first_and_what_is_behind_is_left_out(tmp_path: Path) -> None:
    run, told, evaluator = Storage.at(tmp_path), Told(), Evaluator()
    checkpoint(run, 4)
    evaluations = Evaluations(config_of(tmp_path), run, evaluator, told)
    evaluations(NEWS)
    assert evaluator.began.wait(PATIENCE_S)
    for step in (6, 8, 12):
        checkpoint(run, step)
        evaluations(NEWS)  # returns although nobody is free
    evaluator.free.set()
    told.wait(3)
    evaluations.close()
    assert evaluator.names == [name_of(4, 0), name_of(12, 0)]
    assert evaluator.most_at_once == 1
    assert [each["checkpoint"] for each in told.messages] == [name_of(step, 0) for step in (4, 8, 12)]
    assert "skipped" in told.messages[1]
    assert told.messages[2]["numbers"] == {"evaluation/validation_loss": 0.5}
    assert evaluated(run) == [(step, {"evaluation/validation_loss": 0.5}, name_of(step, 0)) for step in (4, 12)]


@pytest.mark.parametrize("failure", [GiornataError("no memory"), OSError("no disk"), RuntimeError("a defect")])
def test_a_failure_is_told_and_the_next_is_evaluated(tmp_path: Path, failure: Exception) -> None:
    run, told = Storage.at(tmp_path), Told()
    evaluator = Evaluator(lambda name: failure if name == name_of(4, 0) else None)
    evaluator.free.set()
    with evaluating(config_of(tmp_path), run, told, evaluator) as evaluations:
        assert evaluations is not None
        for step in (4, 8):
            checkpoint(run, step)
            evaluations(NEWS)
            told.wait(step // 4)
    assert told.messages[0]["failed"] == str(failure)
    assert not kept(run, name_of(4, 0))
    assert kept(run, name_of(8, 0))


def test_one_that_hangs_holds_nobody(tmp_path: Path) -> None:
    run, told, evaluator = Storage.at(tmp_path), Told(), Evaluator()
    checkpoint(run, 4)
    evaluations = Evaluations(config_of(tmp_path), run, evaluator, told)
    evaluations(NEWS)
    assert evaluator.began.wait(PATIENCE_S)
    evaluations(NEWS)
    evaluations.finish(threading.Event(), within_s=0.0)
    evaluations.close(within_s=0.0)
    assert told.messages == []
    evaluator.free.set()


def test_what_ends_with_the_run_is_no_failure(tmp_path: Path) -> None:
    run, told, evaluator = Storage.at(tmp_path), Told(), Evaluator(lambda _: GiornataError("was ended"))
    checkpoint(run, 4)
    evaluations = Evaluations(config_of(tmp_path), run, evaluator, told)
    evaluations(NEWS)
    assert evaluator.began.wait(PATIENCE_S)
    evaluations.close(within_s=0.0)
    evaluator.free.set()
    evaluations.close(within_s=PATIENCE_S)
    assert told.messages == []
    assert not kept(run, name_of(4, 0))


def test_the_last_one_is_waited_for_and_what_another_command_left_is_caught_up(tmp_path: Path) -> None:
    run, evaluator = Storage.at(tmp_path), Evaluator()
    evaluator.free.set()
    before, last = checkpoint(run, 4), checkpoint(run, 7, 1)
    keep(run, before, {"step": 4})
    with evaluating(config_of(tmp_path), run, Told(), evaluator) as evaluations:
        assert evaluations is not None
        evaluations.finish(threading.Event(), within_s=PATIENCE_S)
    assert evaluator.names == [last.name]
    with evaluating(config_of(tmp_path), run, Told(), evaluator) as evaluations:
        assert evaluations is not None
        evaluations.finish(threading.Event(), within_s=PATIENCE_S)
    assert evaluator.names == [last.name], "once"


def test_without_leave_nothing_is_evaluated(tmp_path: Path) -> None:
    with evaluating(config_of(tmp_path, checkpoints=0), Storage.at(tmp_path), Told()) as evaluations:
        assert evaluations is None


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    """In time, and when it is told to stop; one that ends by itself is not."""
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    began_s, seconds = time.monotonic(), iter([0.0, 1.0, 11.0])
    with pytest.raises(GiornataError, match="10 s"):
        ended(sleeping, tmp_path / "log", threading.Event(), timeout_s=10.0, clock_s=lambda: next(seconds))
    stop = threading.Event()
    stop.set()
    ended(sleeping, tmp_path / "log", stop, timeout_s=600.0)
    assert time.monotonic() - began_s < 300
    ended([sys.executable, "-c", "print('done')"], tmp_path / "log", threading.Event(), timeout_s=600.0)
    assert (tmp_path / "log").read_text() == "done\n"


def test_why_there_is_no_report_is_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Traceback\nMemoryError: no\n\n")
    faults = [{"where": "--clip", "message": "cannot be loaded"}, {"where": "run", "message": "has no checkpoint"}]
    assert why_not({"faults": faults}, log) == "--clip cannot be loaded; run has no checkpoint"
    assert why_not({"error": "no disk"}, log) == "no disk"
    assert why_not({}, log) == "MemoryError: no"
    assert why_not({"step": 4}, log) is None


def test_samples_and_scores_lie_with_the_run(tmp_path: Path) -> None:
    run, sheet = Storage.at(tmp_path / "run"), tmp_path / "sheet.png"
    Image.new("RGB", (6, 4)).save(sheet)
    made = checkpoint(run, 40)
    keep(run, made, {"step": 40, "fid": 12.5, "cmmd": 0.25, "samples_png": str(sheet)})
    assert samples_of(run, made.name) == sheet.read_bytes()
    assert samples_of(run, name_of(41, 0)) is None
    told = json.loads(run.read(f"{FOLDER}/{made.name}.json"))
    assert told == {"step": 40, "fid": 12.5, "cmmd": 0.25, "samples": f"{made.name}.png"}


def test_what_is_not_measured_is_said(tmp_path: Path) -> None:
    blind = not_measured(config_of(tmp_path, checkpoints=0))
    assert ["train.validation_steps = 0" in blind[0], "train.validation_rows = 0" in blind[0]] == [True, True]
    assert "evaluate.checkpoints = 0" in blind[1]
    config = config_of(tmp_path)
    seeing = replace(config, train=replace(config.train, validation_steps=2, validation_rows=4))
    assert not_measured(seeing) == []


def test_people_and_programs_are_told(tmp_path: Path) -> None:
    about = {"event": "evaluation", "checkpoint": "step-00000004-phase-0"}
    messages = [
        {"event": "note", "words": "no validation loss: train.validation_rows = 0"},
        {**about, "step": 4, "numbers": {"evaluation/clip_score": 21.5}},
        {**about, "step": 4, "numbers": {}},
        {**about, "step": 4, "skipped": "a newer one was due as well"},
        {**about, "failed": "no memory"},
    ]
    words, lines = io.StringIO(), io.StringIO()
    for view in (Words(words), Lines(lines)):
        view.begin(config_of(tmp_path))
        for message in messages:
            view(dict(message))
    assert [json.loads(line) for line in lines.getvalue().splitlines()] == messages
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
