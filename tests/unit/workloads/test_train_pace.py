"""When checkpoints are due, and when losses are read."""

import math
from typing import Any

import pytest
import torch
from tests.fixtures.train_rig import RecordingReporter

from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.results.step_metrics import (
    FIRST_COST_S,
    LOSSES_EVERY_STEPS,
    CheckpointSchedule,
    StepGauges,
    StepMeter,
)


class PaceClock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def spec_with(**changes: Any) -> TrainSpec:
    return TrainSpec(pretrained_model_name_or_path="m", dataset="ds_1", seed=1, **changes)


def pace(
    clock: PaceClock, *, mtbi_s: float = 200.0, max_at_risk_s: float = 1e9, **changes: Any
) -> CheckpointSchedule:
    return CheckpointSchedule(spec_with(**changes), mtbi_s=mtbi_s, max_at_risk_s=max_at_risk_s, clock=clock)


def due_after_s(pace: CheckpointSchedule, clock: PaceClock) -> float:
    """Seconds from now until a checkpoint is due, found in steps of 0.25 s."""
    began_s = clock.now_s
    while not pace.due(1):
        clock.now_s += 0.25
    return clock.now_s - began_s


def test_a_number_of_steps_is_obeyed_whatever_the_clock_says() -> None:
    clock = PaceClock()
    every = pace(clock, checkpointing_steps=3)
    clock.now_s += 1e6
    assert [step for step in range(1, 10) if every.due(step)] == [3, 6, 9]


def test_auto_weighs_the_cost_against_the_interruptions() -> None:
    clock = PaceClock()
    auto = pace(clock, mtbi_s=200.0)
    assert due_after_s(auto, clock) == pytest.approx(math.sqrt(2 * FIRST_COST_S * 200), abs=0.25)
    auto.begun(cost_s=4.0)
    assert due_after_s(auto, clock) == pytest.approx(math.sqrt(2 * 4.0 * 200), abs=0.25)


def test_a_checkpoint_is_not_begun_before_the_last_one_could_be_written() -> None:
    clock = PaceClock()
    auto = pace(clock, mtbi_s=200.0)
    auto.begun(cost_s=0.01)
    auto.written(None)
    assert due_after_s(auto, clock) == pytest.approx(2.0, abs=0.25)
    auto.begun(cost_s=0.01)
    auto.written(7.0)
    assert due_after_s(auto, clock) == pytest.approx(7.0, abs=0.25)


def test_no_more_is_at_risk_than_was_asked_for() -> None:
    clock = PaceClock()
    assert due_after_s(pace(clock, mtbi_s=1e6, max_at_risk_s=60.0), clock) == pytest.approx(60.0, abs=0.25)


def meter(clock: PaceClock, device: str) -> tuple[StepMeter, RecordingReporter]:
    reporter = RecordingReporter()
    made = StepMeter(
        reporter,
        spec=spec_with(max_train_steps=99),
        images_per_step=4,
        device=torch.device(device),
        clock=clock,
        gauges=StepGauges(waited_s=lambda: 0.0),
        losses=[],
    )
    return made, reporter


def test_metrics_of_every_step_are_reported_at_once_on_cpu() -> None:
    clock = PaceClock()
    made, reporter = meter(clock, "cpu")
    clock.now_s += 0.2
    made.add(1, learning_rate=0.5, loss=torch.tensor(0.25))
    assert reporter.metrics[1] == pytest.approx(
        {"loss": 0.25, "learning_rate": 0.5, "step_ms": 200.0, "images_per_s": 20.0, "data_wait_ms": 0.0}
    )


def test_norms_scaled_is_fetched_together_with_losses() -> None:
    clock = PaceClock()
    made, reporter = meter(clock, "cuda")
    for step in range(1, LOSSES_EVERY_STEPS + 1):
        made.add(step, learning_rate=1.0, loss=torch.tensor(1.0), scaled=torch.tensor(step))
    assert [reporter.metrics[step]["norms_scaled"] for step in (1, 5)] == [1.0, 5.0]


def test_losses_on_cuda_are_fetched_together_and_none_is_left_out() -> None:
    clock = PaceClock()
    made, reporter = meter(clock, "cuda")  # nothing is computed on it here
    for step in range(1, LOSSES_EVERY_STEPS):
        clock.now_s += 0.01
        made.add(step, learning_rate=1.0, loss=torch.tensor(float(step)))
    assert not reporter.metrics
    clock.now_s += 0.01
    made.add(LOSSES_EVERY_STEPS, learning_rate=1.0, loss=torch.tensor(8.0))
    assert sorted(reporter.metrics) == list(range(1, LOSSES_EVERY_STEPS + 1))
    assert reporter.metrics[3]["loss"] == 3.0
    assert reporter.metrics[3]["step_ms"] == pytest.approx(10.0)


def test_slow_steps_on_cuda_are_not_kept_back() -> None:
    clock = PaceClock()
    made, reporter = meter(clock, "cuda")
    clock.now_s += 2.0
    made.add(1, learning_rate=1.0, loss=torch.tensor(1.0))
    assert sorted(reporter.metrics) == [1]


def test_time_that_went_into_a_checkpoint_is_no_step_time() -> None:
    clock = PaceClock()
    made, reporter = meter(clock, "cpu")
    clock.now_s += 30.0
    made.resume()
    clock.now_s += 0.1
    made.add(1, learning_rate=1.0, loss=torch.tensor(1.0))
    assert reporter.metrics[1]["step_ms"] == pytest.approx(100.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_bad_loss_is_named_and_the_good_ones_before_it_reported(value: float) -> None:
    clock = PaceClock()
    made, reporter = meter(clock, "cuda")
    for step, loss in enumerate((1.0, value, 1.0), start=4):
        made.add(step, learning_rate=1.0, loss=torch.tensor(loss))
    with pytest.raises(WorkloadFailed, match=r"step 5.*learning_rate") as caught:
        made.flush()
    assert caught.value.reason is Reason.BAD_SPEC
    assert sorted(reporter.metrics) == [4]
