"""Broken steps are left out; ordinary noise is not."""

import math
from dataclasses import replace

import pytest

from giornata.diffusion.draws.randomness import normal
from giornata.pretrain.run_state.progress import TrainingProgress
from giornata.pretrain.training.trainer import LEAST_STEPS, WINDOW_STEPS, TooManyBadSteps, fault_of_step
from giornata.protocol.pretraining import Train


class Guard:
    """A run that goes on from its progress."""

    def __init__(self, *, bad: int = 3, progress: TrainingProgress | None = None) -> None:
        self.train = replace(Train(global_batch_size=1), max_loss_ratio=10.0, max_bad_steps=bad)
        self.progress = progress or TrainingProgress()

    def fault(self, loss: float, grad_norm: float) -> str | None:
        return fault_of_step(self.train, self.progress, loss, grad_norm)


def test_an_ordinary_loss_never_fires() -> None:
    """Falling from 1 to 0.15, and twice as much or half of it from step to step."""
    guard, noise = Guard(), normal(0, "test/loss", shape=(2000,))
    for step in range(2000):
        loss = (0.15 + 0.85 * math.exp(-step / 200)) * math.exp(0.5 * float(noise[step]))
        assert guard.fault(loss, 1.0) is None
    assert len(guard.progress.losses) == WINDOW_STEPS


def test_a_spike_fires_and_does_not_move_the_median() -> None:
    guard = Guard(bad=99)
    assert [guard.fault(1.0, 1.0) for _ in range(LEAST_STEPS)] == [None] * LEAST_STEPS
    for _ in range(50):
        assert "10 times the usual 1" in (guard.fault(11.0, 1.0) or "")
    assert guard.fault(9.0, 1.0) is None
    assert guard.progress.bad_in_row == 0


def test_before_there_is_a_median_only_what_is_no_number_fires() -> None:
    guard = Guard(bad=99)
    assert guard.fault(1.0, 1.0) is None
    assert guard.fault(500.0, 1.0) is None
    assert "loss is nan" in (guard.fault(math.nan, 1.0) or "")
    assert "gradient is inf" in (guard.fault(1.0, math.inf) or "")
    assert guard.progress.losses == [1.0, 500.0]


def test_too_many_in_a_row_end_the_run_also_over_a_restart() -> None:
    guard = Guard(bad=3)
    for _ in range(2):
        assert guard.fault(math.nan, 1.0)
    again = Guard(progress=TrainingProgress.from_json(guard.progress.to_json(), where="state.json"))
    with pytest.raises(TooManyBadSteps, match=r"3 steps in a row .* loss is nan"):
        again.fault(math.nan, 1.0)
