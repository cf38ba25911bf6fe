"""One trainer by itself: what it goes on from, when the average begins, and what validation looks at."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.pretrain_feeds import DIGESTS, batch, run_of, tiny_config

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.run_state.checkpoints import Checkpointer, Snapshot
from giornata.pretrain.run_state.committed import newest
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingProgress, origin_of
from giornata.pretrain.training.optimizer import EMA, Averages
from giornata.pretrain.training.trainer import LEAST_STEPS, WEIGHT, TooManyBadSteps, Trainer
from giornata.protocol.pretraining import PretrainConfig


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def trainer_of(
    config: PretrainConfig, folder: Path, stack: ExitStack, **given: Any
) -> tuple[Trainer, TrainingProgress]:
    """Ready for the first phase, from the newest checkpoint if there is one."""
    channel = Channel()
    run = run_of(config, folder, start=newest(Storage.at(folder)), **given)
    found = Trainer(run, channel, stack)
    progress = found.restore()
    found.prepare(progress)
    return found, progress


def step(trainer: Trainer, progress: TrainingProgress) -> tuple[bool, dict[str, float]]:
    """On the eight rows of that step."""
    rows = [(0, 0, 0, 8 * progress.step + row) for row in range(8)]
    return trainer.step(progress, [trainer.draws.example(batch(rows, 16), 0)], 8)


def save(config: PretrainConfig, folder: Path, trainer: Trainer, progress: TrainingProgress) -> None:
    progress.origin = origin_of(progress, config, DIGESTS)
    checkpoints = Checkpointer(Storage.at(folder), folder / "scratch", limit=2)
    checkpoints.begin(Snapshot(tensors=trainer.tensors(), progress=progress, ledger=None))
    checkpoints.wait()
    checkpoints.close()


def copied(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in trainer.tensors().items()}


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    """Kinds of tensors (weight, exp_avg, exp_avg_sq, ema) that are not the same."""
    assert one.keys() == other.keys()
    return {name.split(".")[0] for name in one if not torch.equal(one[name], other[name])}


@pytest.mark.parametrize(
    ("optimizer", "kinds"),
    [
        ("adamw", {"exp_avg", "exp_avg_sq"}),
        ("adamw_8bit", {"state1", "state2", "absmax1", "absmax2"}),
        ("muon", {"momentum_buffer", "exp_avg", "exp_avg_sq"}),
    ],
)
def test_checkpoint_restores_whole_trainer_and_next_step_is_identical(
    tmp_path: Path, stack: ExitStack, optimizer: str, kinds: set[str]
) -> None:
    config = tiny_config(tmp_path, optimizer=optimizer)
    first, progress = trainer_of(config, tmp_path, stack)
    begun = copied(first)
    for _ in range(3):
        step(first, progress)
    save(config, tmp_path, first, progress)
    second, again = trainer_of(config, tmp_path, stack)
    assert again.to_json() == progress.to_json()
    trained = copied(first)
    assert differing(trained, copied(second)) == set()
    assert differing({name: trained[name] for name in begun}, begun) == {"weight", *kinds}
    assert step(first, progress) == step(second, again)
    assert differing(copied(first), copied(second)) == set()
    assert (again.updates, again.ema_steps) == (4, 4)


@pytest.mark.parametrize(("usual", "taken"), [(1e-3, False), (1e3, True)])
def test_the_guard_goes_on_with_the_losses_that_it_had(
    tmp_path: Path, stack: ExitStack, usual: float, taken: bool
) -> None:
    config = tiny_config(tmp_path)
    first, progress = trainer_of(config, tmp_path, stack)
    progress.losses = [usual] * LEAST_STEPS
    save(config, tmp_path, first, progress)
    second, again = trainer_of(config, tmp_path, stack)
    before = copied(second)
    assert step(second, again)[0] is taken
    after = copied(second)
    assert (differing(before, {name: after[name] for name in before}) == set()) is not taken
    assert len(again.losses) == LEAST_STEPS + taken


@pytest.mark.parametrize("bad", [1, 2])
def test_the_guard_goes_on_counting_bad_steps(tmp_path: Path, stack: ExitStack, bad: int) -> None:
    config = tiny_config(tmp_path, max_bad_steps=3)
    first, progress = trainer_of(config, tmp_path, stack)
    progress.losses, progress.bad_in_row = [1e-3] * LEAST_STEPS, bad
    save(config, tmp_path, first, progress)
    second, again = trainer_of(config, tmp_path, stack)
    if bad == 2:
        with pytest.raises(TooManyBadSteps):
            step(second, again)
    else:
        assert step(second, again)[0] is False
        assert again.bad_in_row == 2


def test_a_step_that_is_left_out_leaves_no_trace_but_its_count(tmp_path: Path, stack: ExitStack) -> None:
    config = tiny_config(tmp_path)
    plain, progress = trainer_of(config, tmp_path, stack)
    spoiled, again = trainer_of(config, tmp_path, stack)
    for number in range(3):
        step(plain, progress)
        if number == 1:  # the second tries rows that are not numbers first
            rows = batch([(0, 0, 1, 0)], 16)
            rows.mean_BCHW[0] = float("nan")
            assert spoiled.step(again, [spoiled.draws.example(rows, 0)], 1)[0] is False
            again.step, again.step_in_phase = again.step - 1, again.step_in_phase - 1
        step(spoiled, again)
    assert differing(copied(plain), copied(spoiled)) == set()
    assert (again.skipped_steps, again.skipped_rows, again.samples, again.ema_steps) == (1, 1, 24, 3)


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"ema_start_samples": 0}, [1, 2, 3]),
        ({"ema_start_samples": 16}, [0, 1, 2]),
        ({"ema_start_samples": 17}, [0, 0, 1]),
        ({"use_ema": False}, [0, 0, 0]),
    ],
)
def test_the_average_begins_with_the_step_that_reaches_its_samples(
    tmp_path: Path, stack: ExitStack, train: dict[str, Any], expected: list[int]
) -> None:
    trainer, progress = trainer_of(tiny_config(tmp_path, **train), tmp_path, stack)
    found = []
    for _ in range(3):
        step(trainer, progress)
        found.append(progress.ema_steps)
    assert found == expected
    averages = {name for name in trainer.tensors() if name.startswith(EMA)}
    assert bool(averages) is bool(expected[-1])


def test_validation_looks_at_the_averages_and_puts_the_weights_back(tmp_path: Path, stack: ExitStack) -> None:
    config = tiny_config(tmp_path, validation_steps=4)
    held = [batch([(0, 0, 2, row) for row in range(6)], 16)]
    trainer, progress = trainer_of(config, tmp_path, stack, held=lambda _: held)
    for _ in range(4):
        assert trainer.validated(progress) == {} or progress.step == 0
        step(trainer, progress)
    before = copied(trainer)
    found = trainer.validated(progress)
    assert differing(copied(trainer), before) == set()
    judged = {}
    for kind in (EMA, WEIGHT):  # one without an average, whose weights are the averages or the weights
        other, start = trainer_of(config, tmp_path / "other", stack, held=lambda _: held)
        for name, tensor in other.tensors().items():
            if name.startswith(WEIGHT):
                tensor.copy_(before[kind + name.removeprefix(WEIGHT)])
        judged[kind] = other.validated(start)["validation_loss"]
    assert found["validation_loss"] == judged[EMA]
    assert judged[EMA] != judged[WEIGHT]


def averages_of(value: float, decay: float) -> tuple[torch.Tensor, Averages]:
    weight = torch.tensor([value])
    return weight, Averages({"a": weight}, decay=decay)


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_the_average_moves_as_diffusers_has_it(decay: float) -> None:
    weight, averages = averages_of(1.0, decay)
    averages.update()
    expected = 1.0
    for number in range(1, 30):
        weight.fill_(float(number))
        averages.update()
        mine = min(decay, (1 + number) / (10 + number))
        expected = mine * expected + (1 - mine) * number
        assert float(averages.tensors["a"]) == pytest.approx(expected, rel=1e-5)


def test_the_weights_come_back_after_an_error_too() -> None:
    weight, averages = averages_of(1.0, 0.9)
    averages.update()
    weight.fill_(5.0)
    with pytest.raises(KeyError), averages.swapped_in():
        assert float(weight) == 1.0
        raise KeyError
    assert (float(weight), float(averages.tensors["a"])) == (5.0, 1.0)
