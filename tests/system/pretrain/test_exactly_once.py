"""On a real Ray: whatever is killed, every row is trained exactly once in each epoch, and nothing else is.

What counts is what the trainers wrote down while they trained (giornata.pretrain.run_state.proof), and not the
ledger that they go by.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from tests.system.pretrain.ends import (
    FIRST_STEPS,
    bytes_at_the_end,
    changed,
    changed_half_way,
    check,
)
from tests.system.pretrain.runs import (
    EXIT_STOPPED,
    PATIENCE_S,
    SAMPLES,
    Command,
    after,
    fitted,
    killing,
    losses,
    small_run,
    traced,
)

from giornata.domain.errors import GiornataError
from giornata.pretrain.evaluation.beside import RayTask
from giornata.pretrain.evaluation.kept import kept_evaluations
from giornata.pretrain.ray_train.crashes import MOST_EQUAL
from giornata.pretrain.ray_train.fit import fit
from giornata.pretrain.ray_train.progress_actor import progress_actor_here
from giornata.pretrain.run_state.committed import newest, run_storage
from giornata.pretrain.run_state.proof import proof_of
from giornata.protocol.pretraining import Mode, PretrainConfig


@pytest.fixture(scope="module")
def whole(ray: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> PretrainConfig:
    """A run with a pinned order that nothing disturbed."""
    config = small_run(tmp_path_factory.mktemp("whole"), pinned_order=True)
    fitted(config)
    assert check(config).attempts == 1
    assert len(losses(config)) == check(config).steps
    return config


def test_a_task_of_ray_evaluates_a_checkpoint(ray: ModuleType, whole: PretrainConfig) -> None:
    run = run_storage(whole)
    made = newest(run)
    assert made is not None
    task, numbers, by_s = RayTask(whole, made, all_trained=True), None, time.monotonic() + PATIENCE_S
    while (numbers := task.result()) is None:
        assert time.monotonic() < by_s
        time.sleep(0.2)
    assert kept_evaluations(run) == [(made.step, numbers, made.name)]
    assert numbers["evaluation/validation_loss"] > 0
    ended = RayTask(whole, made, all_trained=True)
    ended.cancel()
    with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError)):
        ray.get(ended.ref, timeout=PATIENCE_S)


def test_pinned_order_gives_the_same_losses_after_a_kill_in_each_phase(whole: PretrainConfig, tmp_path: Path) -> None:
    broken = small_run(tmp_path, pinned_order=True)
    with killing(broken, at=[after(5), after(FIRST_STEPS + 2)]) as killed:
        fitted(broken)
    assert len(killed) == 2
    assert check(broken).attempts == 3
    assert losses(broken) == losses(whole)


def test_kills_around_the_change_of_phase_and_within_its_checkpoint(whole: PretrainConfig, tmp_path: Path) -> None:
    """Weights, moments and averages end with the same bytes: the second phase goes on with the optimizer of the
    first, whichever checkpoint a start went on from."""
    broken = small_run(tmp_path, pinned_order=True)
    with killing(
        broken, at=[changed_half_way, changed, after(FIRST_STEPS + 1)], slowed_from=FIRST_STEPS - 1
    ) as killed:
        fitted(broken)
    assert len(killed) == 3
    assert check(broken).attempts == 4
    assert losses(broken) == losses(whole)
    assert bytes_at_the_end(broken) == bytes_at_the_end(whole)


def test_the_command_is_killed_and_stopped_and_resized(tmp_path: Path) -> None:
    """2 trainers, SIGKILL; 1 trainer, SIGTERM in the second phase; 2 trainers, to the end."""
    two = small_run(tmp_path)
    one = replace(two, workers=replace(two.workers, trainers=1))
    command = Command(two)
    command.until_safe(3)
    assert command.kill() == -signal.SIGKILL
    command = Command(one)
    command.until_safe(-(-SAMPLES[0] // 16))
    assert command.send(signal.SIGTERM) == EXIT_STOPPED
    stopped = proof_of(one)
    assert not stopped.finished
    assert stopped.repeated == 0
    assert 0 < stopped.missed < SAMPLES[1] + 1
    assert Command(two).wait() == 0
    check(two)


def test_an_encoder_and_the_controller_are_killed(ray: ModuleType, tmp_path: Path) -> None:
    config = small_run(tmp_path, mode=Mode.ONLINE, trainers=1)
    config = replace(config, encode=replace(config.encode, encode_batch_size=8))
    with actors_killed(config, {2: "EncodeRows", FIRST_STEPS + 1: "TrainController"}) as killed:
        fitted(config)
    assert len(killed) == 2
    check(config)


@contextmanager
def actors_killed(config: PretrainConfig, by_step: Mapping[int, str]) -> Iterator[list[str]]:
    """SIGKILL to actors of this test's own Ray when each of these steps is done; which were there to be killed."""
    killed: list[str] = []
    done = threading.Event()

    def watch() -> None:
        left = sorted(by_step.items())
        while left and not done.wait(0.05):
            step, name = left[0]
            if any(newest >= step for _, _, newest in traced(config)) and _killed(name):
                killed.append(left.pop(0)[1])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def _killed(name: str) -> bool:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            if line.startswith("ray::") and name in line:
                found.append(process.pid)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return bool(found)


def test_trainer_that_always_crashes_is_reported_each_time_and_given_up(ray: ModuleType, tmp_path: Path) -> None:
    config = small_run(tmp_path, trainers=1)
    for shard in (tmp_path / "latents").rglob("shard-00002.parquet"):
        shard.unlink()
    actor = progress_actor_here()
    with pytest.raises(GiornataError, match=f"given up: {MOST_EQUAL} starts in a row crashed"):
        fit(config, actor=actor, owner="")
    told = [each for each in ray.get(actor.take.remote()) if each["event"] == "crash"]
    assert [each["final"] for each in told] == [False] * (MOST_EQUAL - 1) + [True]
    assert all("shard-00002.parquet" in each["words"] for each in told)
