"""Each text encoder and each block of the UNet at a rate of its own, on whole rows and on single tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.diffusion.test_slots import filled, spec_of

from giornata.diffusion.adapter.adapter_plan import plan_faults, rate_of
from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.optim.slot_optimizer import SlotOptimizer
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimization import SDXL_BLOCK_LR
from giornata.workloads.train.steps import optimizer_of

RATES: dict[str, Any] = {
    "train_text_encoder": True,
    "text_encoder_learning_rates": (1e-3, 0.0),
    "block_learning_rates": {"up_blocks": 3e-3, "unet.up_blocks.0": 7e-3, "down_blocks": 0},
    "learning_rate": 1e-2,
    "rank": 4,
    "adam_weight_decay": 0.0,
    "max_grad_norm": 1e6,
}


def first_moves(named: dict[str, torch.nn.Parameter], step: Any) -> dict[str, float]:
    """How far AdamW's first step takes each tensor: just its rate."""
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    for name, parameter in named.items():
        assert parameter.grad is not None
        parameter.grad.copy_(normal(3, "slope", name, shape=tuple(parameter.shape)))
    step(0)
    return {name: float((parameter.detach() - before[name]).abs().max()) for name, parameter in named.items()}


def wanted_rate(name: str) -> float:
    if name.startswith("text_encoder."):
        return 1e-3
    if name.startswith(("text_encoder_2.", "unet.down_blocks.")):
        return 0.0
    if name.startswith("unet.up_blocks.0."):
        return 7e-3
    return 3e-3 if name.startswith("unet.up_blocks.") else 1e-2


@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_each_part_moves_at_its_rate(tiny_base: BaseModel, tiny_folder: Path, optimizer: str) -> None:
    spec = spec_of(tiny_folder, **RATES | {"optimizer": optimizer})
    with add_adapters(tiny_base, spec) as adapters:
        filled(adapters.parameters, 1)
        one = first_moves(adapters.parameters, optimizer_of(adapters, spec).step)
    with AdapterSlots(tiny_base, spec, count=1) as slots:
        slot = slots.assign(0, spec)
        filled(slot.adapters.parameters, 1)
        other = first_moves(slot.adapters.parameters, SlotOptimizer(slot, spec).step)
    assert one.keys() == other.keys()
    for moves in (one, other):
        assert {name.split(".")[1] for name in moves if name.startswith("unet.")} >= {"down_blocks", "up_blocks"}
        for name, move in moves.items():
            assert move == pytest.approx(wanted_rate(name), rel=1e-3), name


def test_rows_of_many_rates_are_stored_and_taken_up_again(tiny_base: BaseModel, tiny_folder: Path) -> None:
    spec = spec_of(tiny_folder, **RATES | {"optimizer": "adamw_schedule_free"})

    def work(optimizer: SlotOptimizer, slots: AdapterSlots, steps: range) -> None:
        for step in steps:
            slots.gradients_JM.copy_(normal(1, "row", step, shape=tuple(slots.gradients_JM.shape)))
            optimizer.step(step)

    with AdapterSlots(tiny_base, spec, count=1) as slots:
        optimizer = SlotOptimizer(slots.assign(0, spec), spec)
        work(optimizer, slots, range(2))
        state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
        middle = slots.values_JM.clone()
        work(optimizer, slots, range(2, 4))
        whole = slots.values_JM.clone()
    with AdapterSlots(tiny_base, spec, count=1) as slots:
        slot = slots.assign(0, spec)
        slots.values_JM.copy_(middle)
        again = SlotOptimizer(slot, spec)
        again.restore(2, state)
        work(again, slots, range(2, 4))
        assert torch.equal(slots.values_JM, whole)
        assert not torch.equal(whole, middle)


def test_a_part_at_rate_0_counts_in_no_norm(tiny_base: BaseModel, tiny_folder: Path) -> None:
    spec = spec_of(tiny_folder, **RATES | {"max_grad_norm": 0.1, "adam_epsilon": 0.1})

    def moved(large: float) -> torch.Tensor:
        with add_adapters(tiny_base, spec) as adapters:
            optimizer = optimizer_of(adapters, spec)
            for name, parameter in adapters.parameters.items():
                assert parameter.grad is not None
                parameter.grad.fill_(1.0 if wanted_rate(name) else large)
            optimizer.step(0)
            return next(value for name, value in adapters.tensors().items() if name.startswith("unet.up"))

    assert torch.equal(moved(1000.0), moved(0.0))


def test_the_23_rates_of_sd_scripts_are_for_sdxls_blocks() -> None:
    """Its order: embeddings, nine input blocks, three in the middle, nine output blocks, the output."""
    rates = [number / 100 for number in range(1, 24)]
    spec = spec_of(Path("base"), block_lr=",".join(map(str, rates)))
    places = {
        "time_embedding.linear_1": 0,
        "add_embedding.linear_2": 0,
        "conv_in": 1,
        "down_blocks.0.resnets.1.conv1": 3,
        "down_blocks.0.downsamplers.0.conv": 4,
        "down_blocks.1.attentions.1.proj_in": 6,
        "down_blocks.2.attentions.0.transformer_blocks.3.attn1.to_q": 8,
        "mid_block.attentions.0.proj_in": 11,
        "mid_block.resnets.1.conv2": 12,
        "up_blocks.0.attentions.0.proj_out": 13,
        "up_blocks.0.upsamplers.0.conv": 15,
        "up_blocks.1.resnets.2.conv1": 18,
        "up_blocks.2.resnets.2.conv1": 21,
        "conv_out": 22,
    }
    found = {name: rate_of(spec, f"unet.{name}.lora_A.weight").learning_rate for name in places}
    assert found == {name: rates[place] for name, place in places.items()}
    assert len(SDXL_BLOCK_LR) == 23


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"optimizer": "prodigy", "learning_rate": 1.0, "block_learning_rates": {"mid_block": 1.0}},
            "block_learning",
        ),
        ({"text_encoder_learning_rates": (1e-4,)}, "has no effect without train_text_encoder"),
        (
            {"text_encoder_learning_rates": (1e-4,), "train_text_encoder": True, "text_encoder_lr": 1e-4},
            "text_encoder_lr has no effect with text_encoder_learning_rates",
        ),
        ({"block_lr": "1e-4,1e-4"}, "2 rates, and block_lr has 23"),
    ],
)
def test_rates_that_cannot_be_meant_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spec_of(Path("base"), **fields)


def test_rates_of_what_the_base_does_not_have_are_refused_with_what_there_is(
    tiny_base: BaseModel, tiny_folder: Path
) -> None:
    spec = spec_of(
        tiny_folder,
        train_text_encoder=True,
        text_encoder_learning_rates=(1e-4,),
        block_learning_rates={"up_blocks.9": 1e-4},
    )
    faults = {fault.where: fault for fault in plan_faults(tiny_base.unet, tiny_base.text_encoders, spec)}
    assert faults.keys() == {"spec.block_learning_rates", "spec.text_encoder_learning_rates"}
    assert "up_blocks.9" in faults["spec.block_learning_rates"].message
    assert "mid_block" in (faults["spec.block_learning_rates"].hint or "")
    assert "1 rates, and the base model has 2" in faults["spec.text_encoder_learning_rates"].message


def test_adapter_slot_without_rate_fields_has_one_segment_per_parameter_group(
    tiny_base: BaseModel, tiny_folder: Path
) -> None:
    spec = TrainSpec.model_validate(spec_of(tiny_folder, train_text_encoder=True).model_dump())
    with AdapterSlots(tiny_base, spec, count=1) as slots:
        slot = slots.assign(0, spec)
        assert {name: (start, end) for name, (_, start, end) in slot.segments.items()} == slots.layout.groups
