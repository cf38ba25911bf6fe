"""The pure parts of the pre-training demo."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.pretrain_demo.__main__ import MARK, prepare, verdict, write_config
from examples.pretrain_demo.kills import Kill, LivingTrainer, alive_trainers, kill_steps, victim
from examples.pretrain_demo.loss_chart import running_mean

from giornata.diffusion.shapes.pictures import grid
from giornata.domain.errors import InvalidInput
from giornata.pretrain.evaluate import phase_of
from giornata.pretrain.evaluation.scores import clip_score, cmmd
from giornata.pretrain.recipes import read_config, shapes
from giornata.pretrain.run_state.progress import TrainingProgress
from giornata.pretrain.run_state.proof import Trace

TRAINED = {
    "finished": True,
    "planned": 100,
    "trained_once": 100,
    "repeated": 0,
    "missed": 0,
    "unreadable": 0,
    "left_out": 0,
    "undone": 12,
    "attempts": 3,
    "steps": 20,
}
KILLS = (Kill(phase=0, step=5, pid=1), Kill(phase=1, step=15, pid=2))
ROWS = [{"step": float(step), "phase": 0.0, "loss": 2.0 / step} for step in range(1, 21)]


def judged(refused: dict[str, int] | None = None, kills: tuple[Kill, ...] = KILLS, **trained: Any) -> dict[str, Any]:
    """The verdict on a run that is good but for what is given."""
    ingested = {"rows": 53, "kept": 50, "quarantined": {"damaged": 3, "empty": 0}}
    wanted = {"damaged": 3} if refused is None else refused
    return verdict(wanted, ingested, {**TRAINED, **trained}, kills, rows=ROWS, phases=2)


def test_a_good_run_is_ok() -> None:
    report = judged()
    assert report["ok"]
    assert report["faults_found"] == []
    assert (report["quarantined"], report["kills"]) == (3, 2)
    assert report["loss_first"] > report["loss_last"] > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"repeated": 1},
        {"missed": 1},
        {"trained_once": 99},
        {"finished": False},
        {"refused": {"damaged": 2}},
        {"refused": {"damaged": 2, "too_small": 1}},
        {"kills": KILLS[:1]},
        {"kills": (KILLS[0], KILLS[0])},
    ],
)
def test_demo_verdict_finds_one_fault_for_each_failed_condition(changes: dict[str, Any]) -> None:
    report = judged(**changes)
    assert not report["ok"]
    assert len(report["faults_found"]) == 1


def test_the_configuration_is_read_as_it_was_meant(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" folder'
    folder.mkdir()
    config = read_config(str(write_config(folder)))
    assert config.storage == str(folder / "work")
    assert config.data.shards == str(folder / "shards")
    assert config.tracking.trace_rows
    assert set(config.train.validation_prompts) <= {shape.caption for shape in grid()}, (
        "what a prompt means is drawn beside it"
    )


def test_kills_come_within_their_phases_and_after_a_checkpoint(tmp_path: Path) -> None:
    config = read_config(str(write_config(tmp_path)))
    first, second = kill_steps(config)
    before, after = (-(-phase.samples // config.train.global_batch_size) for phase in config.phases)
    change, end = before, before + after
    every = config.train.checkpoint_steps
    assert every < first < change < second < end
    assert first % every and second % every, "a kill right at a checkpoint undoes nothing"


def test_demo_kills_one_trainer_in_each_phase() -> None:
    early, late = LivingTrainer(pid=1, phase=0, step=4), LivingTrainer(pid=1, phase=0, step=5)
    second = LivingTrainer(pid=3, phase=1, step=15)
    steps = [5, 15]
    assert victim([early], steps, []) is None
    assert victim([early, late], steps, []) == late
    assert victim([late], steps, KILLS[:1]) is None
    assert victim([second], steps, KILLS[:1]) == second
    assert victim([second], steps, KILLS) is None


def test_a_trainer_is_alive_while_its_trace_grows(tmp_path: Path) -> None:
    trace = Trace(tmp_path, from_step=0, now_ms=1, rank=0)
    now_s = (next(tmp_path.iterdir())).stat().st_mtime
    assert alive_trainers(tmp_path, now_s=now_s) == [], "it has not trained yet"
    trace(1, 7, [(0, 3)])
    found = alive_trainers(tmp_path, now_s=now_s + 0.5)
    assert [(each.phase, each.step) for each in found] == [(1, 7)]
    assert found[0].pid > 0
    assert alive_trainers(tmp_path, now_s=now_s + 60) == [], "its file has not grown for a minute"


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidInput, match="was not made by this demo"):
        prepare(theirs)
    assert (theirs / "thesis.txt").exists()
    own = tmp_path / "own"
    prepare(own)
    (own / "loss.png").touch()
    prepare(own)
    assert [path.name for path in own.iterdir()] == [MARK]


def test_running_mean_is_centered_and_shortened_at_the_ends() -> None:
    assert running_mean([1.0, 2.0, 6.0, 7.0], 3) == [1.5, 3.0, 5.0, 6.5]
    assert running_mean([], 3) == []


def test_cmmd_is_nought_for_equal_sets_and_as_its_formula_says_for_two_points() -> None:
    chance = torch.Generator().manual_seed(0)
    points_ND = torch.nn.functional.normalize(torch.randn(8, 4, generator=chance), dim=-1)
    assert cmmd(points_ND, points_ND) == pytest.approx(0.0, abs=1e-9)
    a_1D, b_1D = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    # |a - b|² is 2: 1000 · (1 + 1 - 2 · exp(-2 / 200))
    assert cmmd(a_1D, b_1D) == pytest.approx(19.9003325, rel=1e-6)


def test_clip_score_is_a_hundred_for_equal_directions_and_never_negative() -> None:
    a_2D = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert clip_score(a_2D, a_2D) == pytest.approx(100.0)
    assert clip_score(a_2D, -a_2D) == 0.0


@pytest.mark.parametrize(("phase", "step_in_phase", "meant"), [(0, 0, 0), (0, 5, 0), (1, 0, 0), (1, 3, 1), (2, 0, 1)])
def test_weights_belong_to_the_phase_that_trained_them_last(phase: int, step_in_phase: int, meant: int) -> None:
    progress = TrainingProgress(phase=phase, step_in_phase=step_in_phase, step=random.Random(0).randint(1, 9))
    assert phase_of(shapes(), progress) == meant


def test_make_asks_for_the_object_with_which_the_demo_ends() -> None:
    lines = (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8").splitlines()
    assert "examples.pretrain_demo --json" in lines[lines.index("pretrain-demo: $(STAMP)") + 1]
