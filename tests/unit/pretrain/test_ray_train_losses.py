"""How often Ray Train itself may be lost, and how often trainers may crash."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import RunConfig, WorkerGroupError
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.controller.state import ResizingState, RunningState, SchedulingState
from ray.train.v2._internal.execution.scaling_policy import NoopDecision
from tests.fixtures.pretrain_shards import write_shards

from giornata.domain.errors import InvalidInput
from giornata.pretrain.ray_train.crashes import MOST_FRUITLESS, RayTrainLosses
from giornata.pretrain.ray_train.fit import LOOK_EVERY_S, RESIZE_WITHIN_S, SaveBeforeResize, fit
from giornata.pretrain.recipes import sdxl_tiny
from giornata.pretrain.run import check
from giornata.pretrain.run_state.committed import STATE, CommittedCheckpoint, FileFacts, commit, name_of, run_storage
from giornata.pretrain.run_state.progress import TrainingProgress, origin_of
from giornata.protocol.pretraining import Mode, PretrainConfig


def test_ray_train_losses_without_progress_are_given_up_after_limit() -> None:
    losses = RayTrainLosses()
    assert [losses.bearable(0) for _ in range(MOST_FRUITLESS)] == [True] * (MOST_FRUITLESS - 1) + [False]


def test_as_long_as_checkpoints_come_it_is_begun_anew() -> None:
    losses = RayTrainLosses()
    assert all(losses.bearable(step) for step in range(10 * MOST_FRUITLESS))


def test_progress_forgives_what_was() -> None:
    losses = RayTrainLosses()
    assert [losses.bearable(step) for step in (0, 0, 5, 5, 5)] == [True, True, True, True, False]


def crashing(times: int, each: Callable[[int], object] = lambda _: None) -> tuple[Callable[..., str], list[int]]:
    """Trainers that crash so many times, more often each time than Ray Train bears."""
    calls: list[int] = []

    def once(_: PretrainConfig, __: Any) -> str:
        calls.append(len(calls))
        if len(calls) > times:
            return "finished"
        each(len(calls))
        raise WorkerGroupError("no such file", {})

    return once, calls


def config_of(folder: Path, **workers: Any) -> PretrainConfig:
    config = sdxl_tiny(str(folder))
    return replace(config, workers=replace(config.workers, **workers))


def test_trainers_that_always_crash_are_not_begun_for_ever(tmp_path: Path) -> None:
    once, calls = crashing(10**6)
    with pytest.raises(WorkerGroupError):
        fit(config_of(tmp_path), actor=None, owner="", once=once)
    assert len(calls) == MOST_FRUITLESS


def test_trainers_that_crash_between_checkpoints_go_on(tmp_path: Path) -> None:
    config = config_of(tmp_path)

    def checkpoint(step: int) -> None:
        run, name = run_storage(config), name_of(step, 0)
        state = tmp_path / STATE
        state.write_text(json.dumps(TrainingProgress(step=step).to_json()))
        run.put(state, f"checkpoints/{name}/{STATE}")
        commit(run, CommittedCheckpoint(name=name, step=step, phase=0, files={STATE: FileFacts.of(state)}))

    once, calls = crashing(10 * MOST_FRUITLESS, checkpoint)
    fit(config, actor=None, owner="", once=once)
    assert len(calls) == 10 * MOST_FRUITLESS + 1


def test_a_bound_of_the_configuration_stands(tmp_path: Path) -> None:
    once, calls = crashing(10**6)
    with pytest.raises(WorkerGroupError):
        fit(config_of(tmp_path, max_failures=0), actor=None, owner="", once=once)
    assert len(calls) == 1


def test_changed_configuration_on_same_storage_is_refused_before_ray_starts(tmp_path: Path) -> None:
    source = write_shards(tmp_path / "shards", shards=2, rows=40)
    config = sdxl_tiny(str(tmp_path))
    config = replace(config, encode=replace(config.encode, mode=Mode.COLOCATED))
    run, name, state = run_storage(config), name_of(5, 0), tmp_path / STATE
    origin = origin_of(TrainingProgress(phase=1), config, {"manifest": source.digest, "encoder": "e"})
    state.write_text(json.dumps(TrainingProgress(step=5, step_in_phase=5, origin=origin).to_json()))
    run.put(state, f"checkpoints/{name}/{STATE}")
    commit(run, CommittedCheckpoint(name=name, step=5, phase=0, files={STATE: FileFacts.of(state)}))
    check(config)
    with pytest.raises(InvalidInput, match="training or finished phases has changed"):
        check(replace(config, train=replace(config.train, adam_beta1=0.8)))
    write_shards(tmp_path / "shards", shards=1, rows=80)
    with pytest.raises(InvalidInput, match="manifest differs from what it was made with"):
        check(config)


class PlayedBoard:
    """A actor whose trainers have left after so many looks."""

    def __init__(self, looks: int) -> None:
        self.asked, self.looks, self._left_after = 0, 0, looks

    def ask_to_resize(self) -> None:
        self.asked += 1

    def have_left(self) -> bool:
        self.looks += 1
        return self.looks > self._left_after


class FakeActor:
    """As Ray hands out an actor: `actor.method.remote()`."""

    def __init__(self, actor: object) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._actor, name))


@pytest.mark.parametrize(("looks", "waited_s"), [(0, 0.0), (3, 3 * LOOK_EVERY_S), (10**9, RESIZE_WITHIN_S)])
def test_ray_train_changes_the_number_of_trainers_after_they_have_saved(looks: int, waited_s: float) -> None:
    actor, now_s = PlayedBoard(looks), [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    callback = SaveBeforeResize(FakeActor(actor), got=lambda found: found, clock_s=lambda: now_s[0], sleep=sleep)
    callback.after_controller_state_update(RunningState(), SchedulingState(NoopDecision()))
    assert actor.asked == 0, "trainers that start have nothing to save"
    callback.after_controller_state_update(RunningState(), ResizingState(NoopDecision()))
    assert (actor.asked, now_s[0]) == (1, pytest.approx(waited_s, abs=LOOK_EVERY_S))


def test_ray_train_hands_its_states_to_the_callback() -> None:
    """Its own classes, which another version may move."""
    assert issubclass(SaveBeforeResize, ControllerCallback)
    assert RunConfig(callbacks=[SaveBeforeResize(None)]).callbacks
