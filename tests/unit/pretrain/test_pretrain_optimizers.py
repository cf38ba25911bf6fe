"""Rates and optimizers of pre-training are those of the packages that they are named after."""

from collections.abc import Callable

import bitsandbytes
import pytest
import torch
from diffusers.optimization import get_scheduler

from giornata.pretrain.training.optimizer import TrainingOptimizer, learning_rate
from giornata.protocol.pretraining import Phase, Train
from giornata.protocol.training.optimization import LrScheduler

STEPS = 12
ADAM = {"betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.01}
Made = Callable[[list[torch.nn.Parameter]], list[torch.optim.Optimizer]]


@pytest.mark.parametrize("schedule", list(LrScheduler))
def test_a_rate_is_that_of_diffusers_a_step_later_and_is_never_nothing(schedule: LrScheduler) -> None:
    warmup = 0 if schedule is LrScheduler.CONSTANT else 3
    phase = Phase(
        name="a", resolution=64, samples=1, learning_rate=1e-3, lr_scheduler=schedule, lr_warmup_steps=warmup
    )
    steps = 10
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    scheduler = get_scheduler(schedule.value, theirs, num_warmup_steps=warmup, num_training_steps=steps + 1)
    for step in range(steps):
        theirs.step()
        scheduler.step()
        assert learning_rate(phase, step, steps=steps) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        assert learning_rate(phase, step, steps=steps) > 0
    assert learning_rate(phase, steps + 5, steps=steps) == learning_rate(phase, steps - 1, steps=steps)


def parameters() -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = {"matrix": (96, 64), "tall": (33, 7), "bias": (64,), "kernel": (8, 4, 3, 3)}
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in sorted(shapes.items())
    }


def give_gradients(given: dict[str, torch.nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for each in given.values():
        each.grad = torch.randn(each.shape, generator=generator) * 0.01


def train_of(optimizer: str) -> Train:
    return Train(global_batch_size=1, optimizer=optimizer, adam_beta2=0.99, max_grad_norm=1e6)


def adamw(each: list[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(each, lr=1e-2, **ADAM)]


def adamw_8bit(each: list[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
    return [bitsandbytes.optim.AdamW8bit(each, lr=1e-2, **ADAM)]


def muon(each: list[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
    matrices, others = ([one for one in each if (one.ndim == 2) is wanted] for wanted in (True, False))
    return [
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        *adamw(others),
    ]


@pytest.mark.parametrize("made", [adamw, adamw_8bit, muon], ids=lambda made: made.__name__)
def test_updates_are_those_of_the_package(made: Made) -> None:
    mine, theirs = parameters(), parameters()
    optimizer, packages = TrainingOptimizer(mine, train_of(made.__name__), fused=False), made(list(theirs.values()))
    for step in range(STEPS):
        give_gradients(mine, step)
        give_gradients(theirs, step)
        optimizer.update(optimizer.norm(), 1e-2)
        for each in packages:
            each.step()
    for name, each in mine.items():
        torch.testing.assert_close(each, theirs[name], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit", "muon"])
def test_optimizer_resumed_from_tensors_is_bit_identical(name: str) -> None:
    first, second = parameters(), parameters()
    before = TrainingOptimizer(first, train_of(name), fused=False)
    for step in range(STEPS // 2):
        give_gradients(first, step)
        before.update(before.norm(), 1e-2)
    after = TrainingOptimizer(second, train_of(name), fused=False)
    after.begin(before.steps)
    kept = {key: each.clone() for key, each in before.tensors().items()}
    assert kept.keys() == after.tensors().keys()
    with torch.no_grad():
        for key, each in after.tensors().items():
            each.copy_(kept[key])
        for key, each in second.items():
            each.copy_(first[key])
    for step in range(STEPS // 2, STEPS):
        for each, optimizer in ((first, before), (second, after)):
            give_gradients(each, step)
            optimizer.update(optimizer.norm(), 1e-2)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(each, after.tensors()[key]) for key, each in before.tensors().items())
