"""When a checkpoint is due, and what the loop learns of interruptions."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.pretrain_feeds import run_of, tiny_config

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.run_state.committed import committed, newest
from giornata.pretrain.run_state.costs import GUESSED_INTERRUPTION_S, LEAST_S, MOST_S, Cadence, interruption_s
from giornata.pretrain.run_state.costs import interval_s as young_daly_s
from giornata.pretrain.run_state.progress import TrainingOutcome, TrainingProgress, config_digest
from giornata.pretrain.training.loop import train
from giornata.protocol.pretraining import CheckpointCadence, PretrainConfig
from giornata.protocol.pretraining_checks import parse

TIMED = {"checkpoint_cadence": CheckpointCadence.YOUNG_DALY, "checkpoint_steps": 1000}


def interrupted(config: PretrainConfig, every_s: float) -> PretrainConfig:
    return replace(config, workers=replace(config.workers, interruption_s=every_s))


@pytest.mark.parametrize(
    ("save_s", "between_s", "wanted_s"),
    [(5.0, 14_400.0, 379.473), (30.0, 86_400.0, 2276.84), (0.001, 100.0, LEAST_S), (600.0, 1e6, MOST_S)],
)
def test_interval_is_the_root_of_twice_cost_times_interval_within_its_bounds(
    save_s: float, between_s: float, wanted_s: float
) -> None:
    assert young_daly_s(save_s, between_s) == pytest.approx(wanted_s, rel=1e-5)


def test_interruptions_are_those_configured_or_those_observed() -> None:
    seen = TrainingProgress(trained_s=6 * 3600.0, interruptions=4)
    assert interruption_s(100.0, seen) == 100.0
    assert interruption_s(None, seen) == 2 * 3600.0
    assert interruption_s(None, TrainingProgress()) == GUESSED_INTERRUPTION_S


def test_cadence_by_time_uses_the_measured_cost_of_a_save(tmp_path: Path) -> None:
    now_s, progress = [0.0], TrainingProgress()
    config = interrupted(tiny_config(tmp_path, **TIMED), 7200.0)
    cadence = Cadence(config=config, clock_s=lambda: now_s[0])
    cadence.begin(progress)
    now_s[0] = LEAST_S - 1
    assert not cadence.due(progress)
    now_s[0] = LEAST_S
    assert cadence.due(progress), "nothing is known of the cost of a save"

    def save() -> None:
        now_s[0] += 4.0

    cadence.saving(save, progress)
    now_s[0] += 239.0
    assert not cadence.due(progress)
    now_s[0] += 2.0
    assert cadence.due(progress), "sqrt(2 * 4 * 7200) = 240"


def test_cadence_by_time_never_exceeds_checkpoint_steps(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, **{**TIMED, "checkpoint_steps": 5})
    cadence = Cadence(config=config, clock_s=lambda: 0.0)
    cadence.begin(TrainingProgress(step=7))
    assert next(step for step in range(7, 14) if cadence.due(TrainingProgress(step=step))) == 11


def clock(lap_s: float) -> Iterator[float]:
    now_s = 0.0
    while True:
        yield now_s
        now_s += lap_s


def test_loop_saves_by_time_and_by_steps_only_where_asked(tmp_path: Path) -> None:
    """Each look at the clock takes ten seconds, so that a minute has passed after one or two steps."""
    config, seconds = interrupted(tiny_config(tmp_path, samples=(80,), **TIMED), 10.0), clock(10.0)
    config = replace(config, train=replace(config.train, checkpoints_total_limit=99))
    assert train(run_of(config, tmp_path, clock_s=lambda: next(seconds))) is TrainingOutcome.FINISHED
    saved = sorted(each.step for each in committed(Storage.at(tmp_path)))
    assert len(saved) > 3
    assert saved[-1] == 10
    plain = replace(config, storage=str(tmp_path / "plain"), train=replace(config.train, checkpoint_cadence="steps"))
    assert train(run_of(plain, tmp_path / "plain")) is TrainingOutcome.FINISHED
    assert [each.step for each in committed(Storage.at(tmp_path / "plain"))] == [10]


def test_starts_after_a_loss_are_counted_and_those_after_a_request_are_not(tmp_path: Path) -> None:
    config, run = tiny_config(tmp_path, samples=(80,), checkpoint_steps=50), Storage.at(tmp_path)

    def stopped() -> TrainingProgress:
        asked = iter(range(100))
        train(run_of(config, tmp_path, start=newest(run), preempted=lambda: next(asked) == 1))
        found = newest(run)
        assert found is not None
        return found.progress(run)

    first, second = stopped(), stopped()
    assert [(each.interruptions, each.left) for each in (first, second)] == [(0, True), (0, True)]
    assert 0 < first.trained_s < second.trained_s
    state = "checkpoints/step-00000002-phase-0/state.json"
    run.write(state, run.read(state).replace(b'"left": true', b'"left":false'))  # as if the trainers were killed
    assert stopped().interruptions == 1


def test_cadence_may_change_between_two_starts(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    timed = interrupted(tiny_config(tmp_path, **TIMED), 60.0)
    assert config_digest(config, 2) == config_digest(timed, 2)


def test_an_interval_of_nothing_is_refused_by_name(tmp_path: Path) -> None:
    values = tiny_config(tmp_path, **TIMED).to_json()
    values["workers"]["interruption_s"] = 0.0
    with pytest.raises(InvalidInput, match="interruption_s"):
        parse(values)


def test_checkpoints_of_runs_that_corrected_their_encoders_are_read() -> None:
    values = TrainingProgress(step=4, samples=32).to_json()
    older = {name: each for name, each in values.items() if name not in {"trained_s", "interruptions", "left"}}
    older |= {"encoders": 3, "encoders_seen": [{"encoders": 2}], "encoder_changes": [{"step": 2}]}
    assert TrainingProgress.from_json(older, where="a checkpoint") == TrainingProgress(step=4, samples=32)
    del older["ledgers"]
    with pytest.raises(InvalidInput, match="only 1 is known"):
        TrainingProgress.from_json(older, where="a checkpoint")
    with pytest.raises(InvalidInput, match="only 1 is known"):
        TrainingProgress.from_json({**values, "more": 1}, where="a checkpoint")
