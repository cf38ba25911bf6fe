"""Lion, CAME and what optimizers are told by name, each held to its paper or its package."""

from typing import Any

import pytest
import torch
from prodigyopt import Prodigy
from schedulefree import AdamWScheduleFree
from transformers.optimization import Adafactor

from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.optim.optimizer import AdapterOptimizer, ParameterGroup
from giornata.diffusion.optim.optimizer_kinds import KINDS
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimization import Optimizer
from giornata.protocol.training.optimizer_args import ARGS, argument

SHAPES = {"matrix": (3, 5), "kernel": (2, 3, 3, 3), "vector": (4,)}
STEPS = 6


def spec_with(**changes: Any) -> TrainSpec:
    return TrainSpec(pretrained_model_name_or_path="m", dataset="ds_1", seed=1, **changes)


def weights() -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(normal(1, "weights", name, shape=shape)) for name, shape in SHAPES.items()}


def gradient(name: str, step: int) -> torch.Tensor:
    return normal(1, "gradient", name, step, shape=SHAPES[name])


def ours(spec: TrainSpec) -> dict[str, torch.Tensor]:
    """After some steps without clipping."""
    named = weights()
    made = AdapterOptimizer([ParameterGroup(learning_rate=spec.learning_rate, parameters=named)], spec)
    for step in range(STEPS):
        for name, parameter in named.items():
            assert parameter.grad is not None
            parameter.grad.copy_(gradient(name, step))
        made.step(step)
    return {name: parameter.detach() for name, parameter in named.items()}


def theirs(make: Any) -> dict[str, torch.Tensor]:
    """The same with a package's optimizer."""
    named = weights()
    made = make(list(named.values()))
    if hasattr(made, "train"):
        made.train()
    for step in range(STEPS):
        for name, parameter in named.items():
            parameter.grad = gradient(name, step)
        made.step()
    return {name: parameter.detach() for name, parameter in named.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert not torch.equal(one["matrix"], weights()["matrix"])
    for name in SHAPES:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)


def test_lion_is_that_of_its_paper() -> None:
    """Algorithm 2 of arXiv 2302.06675, in double precision."""
    found = ours(spec_with(optimizer="Lion", learning_rate=0.01, max_grad_norm=1e6, adam_weight_decay=0.1))
    wanted = {}
    for name, parameter in weights().items():
        weight, moment = parameter.detach().double(), torch.zeros(SHAPES[name], dtype=torch.float64)
        for step in range(STEPS):
            slope = gradient(name, step).double()
            update = torch.sign(0.9 * moment + 0.1 * slope)
            weight = weight - 0.01 * (update + 0.1 * weight)
            moment = 0.99 * moment + 0.01 * slope
        wanted[name] = weight.float()
    same(found, wanted)


def came_of_the_paper(name: str, *, rate: float, decay: float) -> torch.Tensor:
    """Algorithm 2 of arXiv 2307.02047, in double precision; convolutions by the matrices of their kernels."""
    b1, b2, b3, e1, e2 = 0.9, 0.999, 0.9999, 1e-30, 1e-16
    weight = weights()[name].detach().double()
    moment = torch.zeros_like(weight)
    of_rows, of_columns = torch.zeros_like(weight.mean(-1)), torch.zeros_like(weight.mean(-2))
    rows, columns = torch.zeros_like(of_rows), torch.zeros_like(of_columns)
    for step in range(STEPS):
        slope = gradient(name, step).double()
        squares = slope**2 + e1
        rows = b2 * rows + (1 - b2) * squares.mean(-1)
        columns = b2 * columns + (1 - b2) * squares.mean(-2)
        mean = rows.mean(-1, keepdim=True).unsqueeze(-1)
        update = slope / (rows.unsqueeze(-1) * columns.unsqueeze(-2) / mean).sqrt()
        update = update / max(1.0, float((update**2).mean().sqrt()))
        moment = b1 * moment + (1 - b1) * update
        instability = (update - moment) ** 2 + e2
        of_rows = b3 * of_rows + (1 - b3) * instability.mean(-1)
        of_columns = b3 * of_columns + (1 - b3) * instability.mean(-2)
        mean = of_rows.mean(-1, keepdim=True).unsqueeze(-1)
        steady = (of_rows.unsqueeze(-1) * of_columns.unsqueeze(-2) / mean).sqrt()
        weight = weight - rate * (moment / steady + decay * weight)
    return weight.float()


def test_came_is_that_of_its_paper() -> None:
    found = ours(spec_with(optimizer="CAME", learning_rate=0.01, max_grad_norm=1e6, adam_weight_decay=0.1))
    for name in ("matrix", "kernel"):
        wanted = came_of_the_paper(name, rate=0.01, decay=0.1)
        torch.testing.assert_close(found[name], wanted, rtol=1e-4, atol=1e-5)
    assert not torch.equal(found["vector"], weights()["vector"])


@pytest.mark.parametrize(
    ("optimizer", "args", "make"),
    [
        (
            "prodigy",
            {"d_coef": 2.0, "d0": 1e-3, "betas": (0.8, 0.9), "beta3": 0.9, "growth_rate": 1.2, "weight_decay": 0.3},
            lambda given: Prodigy(
                given,
                d_coef=2.0,
                d0=1e-3,
                betas=(0.8, 0.9),
                beta3=0.9,
                growth_rate=1.2,
                weight_decay=0.3,
                use_bias_correction=True,
                safeguard_warmup=True,
            ),
        ),
        (
            "prodigy",
            {"decouple": False, "use_bias_correction": False, "safeguard_warmup": False, "eps": 1e-6},
            lambda given: Prodigy(given, decouple=False, eps=1e-6, weight_decay=1e-4),
        ),
        (
            "adafactor",
            {"scale_parameter": True, "clip_threshold": 0.5, "decay_rate": -0.6, "eps": (1e-20, 1e-2)},
            lambda given: Adafactor(
                given,
                lr=1.0,
                scale_parameter=True,
                clip_threshold=0.5,
                decay_rate=-0.6,
                eps=(1e-20, 1e-2),
                relative_step=False,
                weight_decay=1e-4,
            ),
        ),
        (
            "adamw_schedule_free",
            {"r": 1.0, "weight_lr_power": 1.0, "betas": (0.7, 0.9)},
            lambda given: AdamWScheduleFree(
                given, lr=1.0, r=1.0, weight_lr_power=1.0, betas=(0.7, 0.9), weight_decay=1e-4, foreach=False
            ),
        ),
        (
            "adamw",
            {"betas": (0.7, 0.9), "eps": 1e-3, "weight_decay": 0.2},
            lambda given: torch.optim.AdamW(given, lr=1.0, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.2),
        ),
    ],
)
def test_optimizer_args_reach_optimizer_package(optimizer: str, args: dict[str, Any], make: Any) -> None:
    spec = spec_with(optimizer=optimizer, learning_rate=1.0, max_grad_norm=1e6, optimizer_args=args)
    same(ours(spec), theirs(make))


def test_adafactor_takes_vectors_such_as_magnitudes() -> None:
    found = ours(spec_with(optimizer="adafactor", learning_rate=0.1, max_grad_norm=1e6))
    wanted = theirs(
        lambda given: Adafactor(given, lr=0.1, scale_parameter=False, relative_step=False, weight_decay=1e-4)
    )
    same(found, wanted)


def test_every_default_is_what_the_optimizer_has_without_it() -> None:
    for optimizer in Optimizer:
        plain = {"optimizer": optimizer, "learning_rate": 1.0}
        given = {
            name: arg.default for name, arg in ARGS[optimizer].items() if arg.default not in (None, float("inf"))
        }
        told = spec_with(**plain, optimizer_args=given)
        for name, value in given.items():
            assert argument(told, name) == argument(spec_with(**plain), name) == value, (optimizer, name)
        if optimizer is not Optimizer.ADAMW_8BIT:
            one, other = (
                ours(spec_with(**plain, max_grad_norm=1e6)),
                ours(told.model_copy(update={"max_grad_norm": 1e6})),
            )
            assert all(torch.equal(one[name], other[name]) for name in SHAPES), optimizer


@pytest.mark.parametrize(
    ("optimizer", "args", "said"),
    [
        ("adamw", {"d_coef": 2}, "optimizer_args of adamw has no d_coef; expected: betas, eps, weight_decay"),
        ("prodigy", {"d_coef": 0}, "optimizer_args d_coef is 0, but must be > 0, ≤ 100"),
        ("prodigy", {"decouple": 1}, "optimizer_args decouple is 1, but must be true, false"),
        ("prodigy", {"betas": (0.9,)}, "optimizer_args betas is (0.9,), but must be 2 numbers, each ≥ 0, < 1"),
        ("adafactor", {"relative_step": True}, "optimizer_args relative_step is True, but must be false"),
        ("came", {"betas": (0.9, 0.99)}, "but must be 3 numbers, each ≥ 0, < 1"),
        ("adamw_schedule_free", {"betas": (0.0, 0.9)}, "optimizer_args betas must begin above 0"),
        ("adamw", "betas", "'betas' is not NAME=VALUE"),
        ("adamw", ["eps=1e-8", "eps=1e-6"], "eps is given twice"),
        ("adamw", ["eps=small"], "has a value that is no number"),
    ],
)
def test_invalid_optimizer_args_are_refused_by_name(optimizer: str, args: Any, said: str) -> None:
    with pytest.raises(ValueError, match="optimizer_args") as refused:
        spec_with(optimizer=optimizer, learning_rate=1.0, optimizer_args=args)
    assert said in str(refused.value)


def test_the_same_is_not_told_twice() -> None:
    with pytest.raises(ValueError, match="optimizer_args betas says the same as adam_beta1; give one of them"):
        spec_with(adam_beta1=0.8, optimizer_args={"betas": (0.7, 0.9)})
    with pytest.raises(ValueError, match="adam_beta2 has no effect with optimizer lion"):
        spec_with(optimizer="lion", adam_beta2=0.9)


def test_the_spelling_of_sd_scripts_is_understood() -> None:
    told = ["decouple=True", "weight_decay=0.01", "d_coef=2", "betas=0.9,0.99"]
    for given in (told, " ".join(told)):
        spec = spec_with(optimizer="Prodigy", learning_rate=1.0, optimizer_args=given)
        assert spec.optimizer_args == {"decouple": True, "weight_decay": 0.01, "d_coef": 2, "betas": (0.9, 0.99)}
        assert TrainSpec.model_validate(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_the_bytes_that_an_optimizer_takes_are_expected(rank: int) -> None:
    """Of A and B of a layer: never less than there are, and of matrices at rank 16 hardly more."""
    for optimizer in (Optimizer.LION, Optimizer.CAME):
        kind, numbers = KINDS[optimizer], 0
        for shape in ((rank, 640), (320, rank)):
            state = kind.begin(torch.nn.Parameter(torch.zeros(shape)), 0, on_cuda=False)
            numbers += sum(value.numel() for value in state.values() if isinstance(value, torch.Tensor))
        expected = kind.copies(rank) * rank * (640 + 320)
        assert numbers <= expected <= (1.2 if rank == 16 else 2.0) * numbers
