"""AdamW whose state can be taken out and put back bit for bit, under diffusers' learning rates."""

import itertools
from typing import Any

import pytest
import torch
from diffusers.optimization import get_scheduler

from giornata.diffusion.optimizer import AdapterOptimizer, Group
from giornata.diffusion.randomness import normal
from giornata.diffusion.schedule import learning_rate_factor
from giornata.protocol.specs import LrScheduler, TrainSpec


def spec_with(**changes: Any) -> TrainSpec:
    return TrainSpec(pretrained_model_name_or_path="m", dataset="ds_1", seed=1, **changes)


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize("cycles", [1, 3])
@pytest.mark.parametrize("power", [1.0, 2.5])
@pytest.mark.parametrize("name", list(LrScheduler))
def test_rates_are_those_of_diffusers(name: LrScheduler, warmup: int, cycles: int, power: float) -> None:
    warmup = 0 if name is LrScheduler.CONSTANT else warmup
    spec = spec_with(
        lr_scheduler=name,
        lr_warmup_steps=warmup,
        lr_num_cycles=cycles,
        lr_power=power,
        max_train_steps=20,
        learning_rate=3e-4,
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    scheduler = get_scheduler(
        name.value, optimizer, num_warmup_steps=warmup, num_training_steps=20, num_cycles=cycles, power=power
    )
    for step in range(20):
        assert 3e-4 * learning_rate_factor(spec, step) == pytest.approx(
            scheduler.get_last_lr()[0], rel=1e-12, abs=1e-20
        )
        optimizer.step()
        scheduler.step()


def test_a_rate_below_the_polynomials_end_stays_where_it_is() -> None:
    spec = spec_with(lr_scheduler="polynomial", learning_rate=1e-8, max_train_steps=5)
    assert [learning_rate_factor(spec, step) for step in range(5)] == [1.0] * 5


def parameters() -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(normal(1, "weights", name, shape=(3, 4))) for name in ("a", "b", "text")}


def optimizer_over(named: dict[str, torch.nn.Parameter], spec: TrainSpec) -> AdapterOptimizer:
    unet = {name: named[name] for name in ("a", "b")}
    return AdapterOptimizer(
        [
            Group(learning_rate=spec.learning_rate, parameters=unet),
            Group(learning_rate=spec.text_encoder_lr, parameters={"text": named["text"]}),
        ],
        spec,
    )


def work(named: dict[str, torch.nn.Parameter], optimizer: AdapterOptimizer, steps: range) -> None:
    for step in steps:
        for name in ("a", "text"):  # "b" never gets a gradient
            (named[name] * normal(1, "gradient", name, step, shape=(3, 4))).sum().backward()
        optimizer.step(step)


SPEC = spec_with(
    learning_rate=1e-2,
    text_encoder_lr=1e-3,
    max_grad_norm=0.5,
    lr_scheduler="cosine",
    lr_warmup_steps=2,
    max_train_steps=8,
)


@pytest.mark.parametrize("at", [0, 1, 5])
def test_taken_out_and_put_back_it_goes_on_as_if_nothing_happened(at: int) -> None:
    whole = parameters()
    work(whole, optimizer_over(whole, SPEC), range(8))
    first = parameters()
    before = optimizer_over(first, SPEC)
    work(first, before, range(at))
    moments = {name: moment.clone() for name, moment in before.state().items()}
    second = {name: torch.nn.Parameter(parameter.detach().clone()) for name, parameter in first.items()}
    after = optimizer_over(second, SPEC)
    after.restore(at, moments)
    work(second, after, range(at, 8))
    assert all(torch.equal(second[name], whole[name]) for name in whole)


def test_it_is_adamw_with_clipping_and_two_rates() -> None:
    ours, theirs = parameters(), parameters()
    work(ours, optimizer_over(ours, SPEC), range(4))
    adamw = torch.optim.AdamW(
        [{"params": [theirs["a"], theirs["b"]], "lr": 1e-2}, {"params": [theirs["text"]], "lr": 1e-3}],
        betas=(SPEC.adam_beta1, SPEC.adam_beta2),
        eps=SPEC.adam_epsilon,
        weight_decay=SPEC.adam_weight_decay,
        foreach=False,
    )
    for step in range(4):
        adamw.zero_grad()
        for name in ("a", "text"):
            (theirs[name] * normal(1, "gradient", name, step, shape=(3, 4))).sum().backward()
        theirs["b"].grad = torch.zeros(3, 4)
        torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5)
        for group, peak in zip(adamw.param_groups, (1e-2, 1e-3), strict=True):
            group["lr"] = peak * learning_rate_factor(SPEC, step)
        adamw.step()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-8)


def test_every_parameter_has_moments_from_the_start() -> None:
    named = parameters()
    moments = optimizer_over(named, SPEC).state()
    assert set(moments) == {f"optimizer.{kind}.{name}" for kind in ("exp_avg", "exp_avg_sq") for name in named}
    assert all(not moment.any() and moment.dtype is torch.float32 for moment in moments.values())


def test_a_group_that_has_stopped_stays_as_it_is() -> None:
    named = parameters()
    groups = [
        Group(learning_rate=0.1, parameters={"a": named["a"]}),
        Group(learning_rate=0.1, parameters={"text": named["text"]}, stop_step=3),
    ]
    optimizer = AdapterOptimizer(groups, spec_with(adam_weight_decay=0.1))
    seen = []
    for step in range(5):
        for name in ("a", "text"):
            grad = named[name].grad
            assert grad is not None
            grad.copy_(normal(1, "grad", name, step, shape=(3, 4)))
        optimizer.step(step)
        seen.append({name: named[name].detach().clone() for name in ("a", "text")})
    changed = [not torch.equal(now["text"], then["text"]) for then, now in itertools.pairwise(seen)]
    assert changed == [True, True, False, False]
    assert all(not torch.equal(now["a"], then["a"]) for then, now in itertools.pairwise(seen))
