"""AdamW whose state can be taken out and put back bit for bit, under diffusers' learning rates."""

import itertools
from typing import Any

import pytest
import torch
from diffusers.optimization import get_scheduler
from prodigyopt import Prodigy
from schedulefree import AdamWScheduleFree
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.optimization import Adafactor

from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.draws.schedule import learning_rate_factor
from giornata.diffusion.optim.optimizer import AdapterOptimizer, ParameterGroup
from giornata.diffusion.optim.optimizer_kinds import KINDS
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimization import LrScheduler


def spec_with(**changes: Any) -> TrainSpec:
    return TrainSpec(pretrained_model_name_or_path="m", dataset="ds_1", seed=1, **changes)


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize(
    ("name", "cycles", "power"),
    [
        *((name, 1, 1.0) for name in LrScheduler),
        (LrScheduler.COSINE_WITH_RESTARTS, 3, 1.0),
        (LrScheduler.POLYNOMIAL, 1, 2.5),
    ],
)
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
            ParameterGroup(learning_rate=spec.learning_rate, parameters=unet),
            ParameterGroup(learning_rate=spec.text_encoder_lr, parameters={"text": named["text"]}),
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
    train_text_encoder=True,
    text_encoder_lr=1e-3,
    max_grad_norm=0.5,
    lr_scheduler="cosine",
    lr_warmup_steps=2,
    max_train_steps=8,
)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "prodigy": {"learning_rate": 1.0, "text_encoder_lr": 1.0},
    "adafactor": {},
    "adamw_schedule_free": {"lr_scheduler": "constant_with_warmup"},
    "adamw with ema": {"use_ema": True},
    "adamw_8bit": {},
    "lion": {"optimizer_args": {"betas": (0.8, 0.95), "weight_decay": 0.1}},
    "came": {},
    "prodigy with another first estimate": {
        "learning_rate": 1.0,
        "text_encoder_lr": 1.0,
        "optimizer_args": {"d0": 1e-4, "d_coef": 2.0, "growth_rate": 1.5, "beta3": 0.9, "decouple": False},
    },
}


def spec_of(name: str) -> TrainSpec:
    fields = SPEC.model_dump() | {"optimizer": name.split(maxsplit=1)[0], "train_text_encoder": True}
    return TrainSpec.model_validate(fields | OPTIMIZERS[name])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("at", [0, 1, 5])
def test_taken_out_and_put_back_it_goes_on_as_if_nothing_happened(name: str, at: int) -> None:
    spec, whole = spec_of(name), parameters()
    undisturbed = optimizer_over(whole, spec)
    work(whole, undisturbed, range(8))
    first = parameters()
    before = optimizer_over(first, spec)
    work(first, before, range(at))
    kept = {name: tensor.clone() for name, tensor in before.state().items()}
    second = {name: torch.nn.Parameter(parameter.detach().clone()) for name, parameter in first.items()}
    after = optimizer_over(second, spec)
    assert {name: (each.shape, each.dtype) for name, each in after.state().items()} == {
        name: (each.shape, each.dtype) for name, each in kept.items()
    }
    after.restore(at, kept)
    work(second, after, range(at, 8))
    assert all(torch.equal(second[name], whole[name]) for name in whole)
    ended, wanted = after.result(), undisturbed.result()
    assert all(torch.equal(ended[name], wanted[name]) for name in whole)
    assert not torch.equal(whole["a"], parameters()["a"])


def test_prodigy_is_that_of_its_package() -> None:
    spec, ours, theirs = spec_of("prodigy"), parameters(), parameters()
    work(ours, optimizer_over(ours, spec), range(8))
    reference = Prodigy(
        theirs.values(),
        betas=(spec.adam_beta1, spec.adam_beta2),
        eps=spec.adam_epsilon,
        weight_decay=spec.adam_weight_decay,
        use_bias_correction=True,
        safeguard_warmup=True,
    )
    like(reference, theirs, spec)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-7)


def test_adafactor_is_that_of_transformers() -> None:
    spec, ours, theirs = spec_of("adafactor"), parameters(), parameters()
    work(ours, optimizer_over(ours, spec), range(8))
    groups = [
        {"params": [theirs["a"], theirs["b"]], "lr": spec.learning_rate},
        {"params": [theirs["text"]], "lr": spec.text_encoder_lr},
    ]
    reference = Adafactor(
        groups, lr=1e-2, weight_decay=spec.adam_weight_decay, scale_parameter=False, relative_step=False
    )
    like(reference, theirs, spec)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-7)


SHAPES = ((16, 640), (640, 16), (16, 640), (32,), (8, 16, 3, 3), (1, 8, 1, 1))


def of_every_shape() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(normal(1, number, shape=shape) * 0.1) for number, shape in enumerate(SHAPES)]


def test_adafactor_takes_tensors_of_a_shape_together_without_changing_a_bit() -> None:
    """Matrices, convolutions, magnitudes, vectors."""
    ours, theirs = of_every_shape(), of_every_shape()
    reference = Adafactor(theirs, lr=1e-2, weight_decay=0.01, scale_parameter=False, relative_step=False)
    spec = spec_with(optimizer="adafactor", learning_rate=1e-2, adam_weight_decay=0.01, max_grad_norm=1e6)
    parameters = {str(number): each for number, each in enumerate(ours)}
    optimizer = AdapterOptimizer([ParameterGroup(learning_rate=1e-2, parameters=parameters)], spec)
    for step in range(6):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one.grad is not None
            other.grad = normal(2, number, step, shape=SHAPES[number])
            one.grad.copy_(other.grad)
        optimizer.step(step)
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(ours[0], of_every_shape()[0])


class CountedOperations(TorchDispatchMode):
    """Counts operations."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += not func.is_view
        return func(*args, **(kwargs or {}))


def operations_of(optimizer: str, tensors: int) -> int:
    """Those of one step over so many tensors of one shape."""
    spec = spec_with(optimizer=optimizer, learning_rate=1.0)
    parameters = {str(number): torch.nn.Parameter(torch.ones(4, 8)) for number in range(tensors)}
    made = KINDS[spec.optimizer].make([{"params": list(parameters.values()), "lr": 1.0}], spec, fused=False)
    for parameter in parameters.values():
        parameter.grad = torch.ones(4, 8)
        made.state[parameter] = KINDS[spec.optimizer].begin(parameter, 0, on_cuda=False)
    with CountedOperations() as counting:
        made.step()
    return counting.operations


def test_operations_of_a_step_do_not_grow_with_the_tensors_of_a_job() -> None:
    """On a GPU each is a launch. Prodigy is given rows."""
    assert operations_of("adafactor", 40) == operations_of("adafactor", 2) <= 40
    assert operations_of("prodigy", 1) <= 80


@pytest.mark.parametrize("in_one_row", [False, True])
def test_prodigy_finds_the_rate_that_its_package_finds(in_one_row: bool) -> None:
    """After steps without any gradient, from 1e-6 on until it has found one. Sums are in float64, and over rows in
    another order, and the rate comes back into every weight: 1e-5 is some hundred roundings of float32."""
    theirs = of_every_shape()
    ours = [torch.nn.Parameter(torch.cat([each.detach().flatten() for each in theirs]))]
    ours = ours if in_one_row else of_every_shape()
    betas = (0.9, 0.95)
    reference = Prodigy(theirs, betas=betas, weight_decay=0.01, use_bias_correction=True, safeguard_warmup=True)
    fields = {"adam_beta2": 0.95, "adam_weight_decay": 0.01, "max_grad_norm": 1e6}
    spec = spec_with(optimizer="prodigy", learning_rate=1.0, **fields)
    parameters = {str(number): each for number, each in enumerate(ours)}
    optimizer = AdapterOptimizer([ParameterGroup(learning_rate=1.0, parameters=parameters)], spec)
    found = []
    for step in range(60):
        gradients = [each.detach() * (0.0 if step < 2 else 1.0) + 0.01 * (step > 1) for each in theirs]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient
        for parameter, gradient in zip(ours, gradients, strict=False):
            assert parameter.grad is not None
            flat = torch.cat([each.flatten() for each in gradients])
            parameter.grad.copy_(flat if in_one_row else gradient)
        optimizer.step(step)
        reference.step()
        state = optimizer.state()
        found.append(float(state["optimizer.group.0.d"]))
        assert found[-1] == pytest.approx(reference.param_groups[0]["d"], rel=1e-5)
        assert int(state["optimizer.group.0.k"]) == reference.param_groups[0]["k"]
    assert found[1] == 1e-6 < 1e-3 < found[-1]
    flat = torch.cat([each.detach().flatten() for each in ours])
    wanted = torch.cat([each.detach().flatten() for each in theirs])
    torch.testing.assert_close(flat, wanted, rtol=1e-5, atol=1e-6)


def test_schedule_frees_result_is_what_its_package_calls_eval() -> None:
    spec, ours, theirs = spec_of("adamw_schedule_free"), parameters(), parameters()
    made = optimizer_over(ours, spec)
    work(ours, made, range(8))
    groups = [
        {"params": [theirs["a"], theirs["b"]], "lr": spec.learning_rate},
        {"params": [theirs["text"]], "lr": spec.text_encoder_lr},
    ]
    reference = AdamWScheduleFree(
        groups, betas=(spec.adam_beta1, spec.adam_beta2), weight_decay=spec.adam_weight_decay, foreach=False
    )
    reference.train()
    like(reference, theirs, spec)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-7)
    reference.eval()
    result = made.result()
    for name in ours:
        torch.testing.assert_close(result[name], theirs[name].detach(), rtol=1e-5, atol=1e-7)
    assert not torch.allclose(result["a"], ours["a"], atol=1e-4)


def like(reference: torch.optim.Optimizer, named: dict[str, torch.nn.Parameter], spec: TrainSpec) -> None:
    """Eight steps as `work` makes them."""
    peaks = [group["lr"] for group in reference.param_groups]
    for step in range(8):
        for parameter in named.values():
            parameter.grad = torch.zeros_like(parameter)
        for name in ("a", "text"):
            (named[name] * normal(1, "gradient", name, step, shape=(3, 4))).sum().backward()
        torch.nn.utils.clip_grad_norm_(named.values(), spec.max_grad_norm)
        for group, peak in zip(reference.param_groups, peaks, strict=True):
            group["lr"] = peak * learning_rate_factor(spec, step)
        reference.step()


def test_adapter_optimizer_equals_torch_adamw_with_clipping_and_two_learning_rates() -> None:
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
        ParameterGroup(learning_rate=0.1, parameters={"a": named["a"]}),
        ParameterGroup(learning_rate=0.1, parameters={"text": named["text"]}, stop_step=3),
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


def test_gradient_of_stopped_group_does_not_count_in_clipping_norm() -> None:
    """Its gradient would shrink the steps of what still learns."""

    def moved(large: float) -> torch.Tensor:
        named = parameters()
        groups = [
            ParameterGroup(learning_rate=0.1, parameters={"a": named["a"]}),
            ParameterGroup(learning_rate=0.1, parameters={"text": named["text"]}, stop_step=0),
        ]
        optimizer = AdapterOptimizer(groups, spec_with(max_grad_norm=0.1, adam_epsilon=0.1))
        for name, factor in (("a", 1.0), ("text", large)):
            grad = named[name].grad
            assert grad is not None
            grad.fill_(factor)
        optimizer.step(0)
        return named["a"].detach()

    assert torch.equal(moved(1000.0), moved(0.0))


def test_a_group_is_settled_after_each_update_in_which_it_learns_and_before_the_average() -> None:
    named, settled = parameters(), []

    def settle() -> None:
        settled.append(named["text"].detach().clone())
        with torch.no_grad():
            named["text"].fill_(3.0)

    groups = [
        ParameterGroup(learning_rate=0.1, parameters={"a": named["a"]}),
        ParameterGroup(learning_rate=0.1, parameters={"text": named["text"]}, stop_step=2, settle=settle),
    ]
    optimizer = AdapterOptimizer(groups, spec_with(use_ema=True, adam_weight_decay=0.0))
    for step in range(4):
        grad = named["text"].grad
        assert grad is not None
        grad.fill_(1.0)
        optimizer.step(step)
    assert len(settled) == 2
    assert not torch.equal(settled[0], parameters()["text"].detach())
    assert torch.equal(optimizer.result()["text"], torch.full((3, 4), 3.0))
