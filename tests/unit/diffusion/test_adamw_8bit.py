"""AdamW with moments in 8 bits: that of bitsandbytes, whose packed state is kept as it is."""

from typing import Any

import pytest
import torch
from bitsandbytes.optim import AdamW8bit

from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.draws.schedule import learning_rate_factor
from giornata.diffusion.optim.optimizer import AdapterOptimizer, ParameterGroup
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimization import Optimizer

SHAPES = {"large": (64, 80), "odd": (9, 521), "small": (3, 4)}  # 5120 = 20 blocks; 4689 ends in half a block
RATES = {"large": 1e-2, "odd": 1e-2, "small": 1e-3}


def spec_with(**changes: Any) -> TrainSpec:
    fields = {"pretrained_model_name_or_path": "m", "dataset": "ds_1", "seed": 1, "optimizer": "adamw_8bit"}
    own = {"learning_rate": 1e-2, "max_train_steps": 8, "lr_scheduler": "cosine", "adam_weight_decay": 0.01}
    return TrainSpec.model_validate(fields | own | changes)


SPEC = spec_with()


def parameters() -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(normal(1, "weights", name, shape=shape)) for name, shape in SHAPES.items()}


def optimizer_over(named: dict[str, torch.nn.Parameter], spec: TrainSpec = SPEC) -> AdapterOptimizer:
    groups = [ParameterGroup(learning_rate=RATES[name], parameters={name: named[name]}) for name in named]
    return AdapterOptimizer(groups, spec)


def gradient(name: str, step: int) -> torch.Tensor:
    return normal(1, "gradient", name, step, shape=SHAPES[name])


def work(named: dict[str, torch.nn.Parameter], optimizer: AdapterOptimizer, steps: range) -> None:
    for step in steps:
        for name, parameter in named.items():
            assert parameter.grad is not None
            parameter.grad.copy_(gradient(name, step))
        optimizer.step(step)


def test_adamw_8bit_weights_and_state_equal_bitsandbytes_bit_for_bit() -> None:
    ours, theirs = parameters(), parameters()
    made = optimizer_over(ours)
    work(ours, made, range(8))
    reference = AdamW8bit(
        [{"params": [theirs[name]], "lr": RATES[name]} for name in theirs],
        betas=(SPEC.adam_beta1, SPEC.adam_beta2),
        eps=SPEC.adam_epsilon,
        weight_decay=SPEC.adam_weight_decay,
    )
    for step in range(8):
        for name, parameter in theirs.items():
            parameter.grad = gradient(name, step)
        torch.nn.utils.clip_grad_norm_(list(theirs.values()), SPEC.max_grad_norm, foreach=True)
        for name, group in zip(theirs, reference.param_groups, strict=True):
            group["lr"] = RATES[name] * learning_rate_factor(SPEC, step)
        reference.step()
    state = made.state()
    for name, parameter in theirs.items():
        assert torch.equal(ours[name], parameter)
        for key in ("state1", "state2", "absmax1", "absmax2"):
            kept, wanted = state.get(f"optimizer.{key}.{name}"), reference.state[parameter].get(key)
            assert (kept is None) == (wanted is None)
            if kept is not None and wanted is not None:
                assert kept.dtype is wanted.dtype
                assert torch.equal(kept, wanted)
    assert all(reference.state[parameter]["step"] == 8 for parameter in theirs.values())


def test_moments_are_bytes_with_a_scale_to_a_block_and_small_ones_stay_whole() -> None:
    found = {name: (each.dtype, tuple(each.shape)) for name, each in optimizer_over(parameters()).state().items()}
    wanted: dict[str, Any] = {}
    for number in (1, 2):
        wanted |= {
            f"optimizer.state{number}.large": (torch.uint8, (64, 80)),
            f"optimizer.absmax{number}.large": (torch.float32, (20,)),
            f"optimizer.state{number}.odd": (torch.uint8, (9, 521)),
            f"optimizer.absmax{number}.odd": (torch.float32, (19,)),
            f"optimizer.state{number}.small": (torch.float32, (3, 4)),
        }
    assert found == wanted


@pytest.mark.parametrize("at", [0, 1, 5])
def test_taken_out_and_put_back_it_goes_on_as_if_nothing_happened(at: int) -> None:
    whole = parameters()
    undisturbed = optimizer_over(whole)
    work(whole, undisturbed, range(8))
    first = parameters()
    before = optimizer_over(first)
    work(first, before, range(at))
    kept = {name: tensor.clone() for name, tensor in before.state().items()}
    second = {name: torch.nn.Parameter(parameter.detach().clone()) for name, parameter in first.items()}
    after = optimizer_over(second)
    after.restore(at, kept)
    work(second, after, range(at, 8))
    assert all(torch.equal(second[name], whole[name]) for name in whole)
    ended, wanted = after.state(), undisturbed.state()
    assert all(torch.equal(ended[name], wanted[name]) for name in wanted)
    assert not torch.equal(whole["large"], parameters()["large"])


def test_adamw_8bit_stays_close_to_adamw() -> None:
    ours, theirs = parameters(), parameters()
    work(ours, optimizer_over(ours), range(8))
    work(theirs, optimizer_over(theirs, spec_with(optimizer="adamw")), range(8))
    way = {name: theirs[name].detach() - first.detach() for name, first in parameters().items()}
    off = {name: float((ours[name] - theirs[name]).detach().norm() / way[name].norm()) for name in ours}
    assert off["small"] < 1e-4
    assert 0.0 < off["large"] < 0.1
    assert 0.0 < off["odd"] < 0.1


# ---- how it is asked for


@pytest.mark.parametrize(
    "fields",
    [
        {"use_8bit_adam": True, "optimizer": None},
        {"use_8bit_adam": True, "optimizer": "AdamW"},
        {"optimizer_type": "AdamW8bit", "optimizer": None},
        {"optimizer": "adamw_8bit", "use_8bit_adam": False},
        {"optimizer": "adamw_8bit", "use_8bit_adam": True},
    ],
)
def test_all_its_names_mean_the_same_and_one_is_reported_back(fields: dict[str, Any]) -> None:
    given = SPEC.model_dump(mode="json") | fields
    spec = TrainSpec.model_validate({name: value for name, value in given.items() if value is not None})
    assert spec.optimizer is Optimizer.ADAMW_8BIT
    reported = spec.model_dump(mode="json")
    assert reported["optimizer"] == "adamw_8bit"
    assert "use_8bit_adam" not in reported


def test_use_8bit_adam_conflicts_with_prodigy() -> None:
    with pytest.raises(ValueError, match="use_8bit_adam conflicts with optimizer prodigy"):
        spec_with(optimizer="prodigy", learning_rate=1.0, use_8bit_adam=True)
    assert spec_with(optimizer="adamw", use_8bit_adam=False).optimizer is Optimizer.ADAMW


def test_half_precision_is_bf16() -> None:
    assert spec_with(mixed_precision="fp16").mixed_precision == "bf16"
    assert spec_with(mixed_precision="no").mixed_precision == "no"
    with pytest.raises(ValueError, match="mixed_precision"):
        spec_with(mixed_precision="fp8")
