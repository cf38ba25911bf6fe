"""How a pre-training run goes on, from its latest steps."""

import pytest

from giornata.domain.jobs.pretraining_progress import PhaseProgress, phase_of_step, pretraining_progress

PHASES = (
    PhaseProgress(name="256", resolution=256, samples=1000, last_step=63),
    PhaseProgress(name="512", resolution=512, samples=600, last_step=101),
)


def test_a_run_without_a_step_has_its_schedule_alone() -> None:
    found = pretraining_progress([], PHASES)
    assert (found.steps, found.phases, found.images_per_s, found.to_come_usd) == (0, PHASES, None, None)


def test_forecast_is_the_time_of_the_latest_pictures_for_each_that_is_left() -> None:
    points = [
        {"samples": 1100.0, "spent_usd": 5.0, "time_s": 60.0},
        {"samples": 1200.0, "spent_usd": 5.5, "time_s": 90.0},
    ]
    found = pretraining_progress(points, PHASES)
    assert [each.trained for each in found.phases] == [1000, 200]
    assert (found.spent_usd, found.to_come_usd, found.left_s) == (5.5, pytest.approx(2.0), pytest.approx(120.0))
    over = pretraining_progress([*points, {"samples": 1600.0, "spent_usd": 7.0, "time_s": 200.0}], PHASES)
    assert (over.to_come_usd, over.left_s) == (0.0, 0.0)


def test_a_run_without_prices_tells_no_dollars_and_one_step_no_rate() -> None:
    step = {"samples": 16.0, "spent_usd": 0.0, "time_s": 1.0}
    found = pretraining_progress([step, {**step, "samples": 32.0, "time_s": 3.0}], PHASES)
    assert (found.spent_usd, found.to_come_usd, found.left_s) == (None, None, pytest.approx(2 * 1568 / 16))
    assert pretraining_progress([step], PHASES).left_s is None
    assert pretraining_progress([step, step], PHASES).left_s is None, "no picture between them"


def test_losses_are_means_over_the_steps_that_had_rows_of_the_level() -> None:
    points = [{"loss_level_9": 1.0, "loss_level_10": 4.0}, {"loss_level_9": 3.0, "loss_level_x": 7.0}, {"loss": 5.0}]
    found = pretraining_progress([*points, {"loss_level_0": float("nan"), "mfu": 0.5}], PHASES)
    assert found.loss_by_level == ((9, 2.0), (10, 4.0))
    assert (found.mfu, found.data_wait_share) == (0.5, None)


@pytest.mark.parametrize(("step", "name"), [(0, "256"), (63, "256"), (64, "512"), (101, "512"), (102, None)])
def test_step_belongs_to_the_phase_that_ends_with_it_or_later(step: int, name: str | None) -> None:
    found = phase_of_step(PHASES, step)
    assert (None if found is None else found.name) == name
