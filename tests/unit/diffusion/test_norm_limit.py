"""sd-scripts' `scale_weight_norms`: no layer is longer than the bound after a step."""

from pathlib import Path

import pytest
import torch
from tests.unit.diffusion.test_slots import filled, spec_of

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.optim.optimizer import norm_limit
from giornata.diffusion.optim.slot_optimizer import SlotOptimizer
from giornata.protocol.specs import TrainSpec

MOST = 0.5


def by_sd_scripts(tensors: dict[str, torch.Tensor], scale: float) -> tuple[dict[str, torch.Tensor], int]:
    """Its formula, by the product itself: updown = scale * up @ down, of which the norm is taken."""
    found, count = dict(tensors), 0
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        up_name = name.replace(".lora_A.", ".lora_B.")
        down, up = tensors[name].double().flatten(1), tensors[up_name].double().flatten(1)
        norm = float((scale * up @ down).norm())
        ratio = min(max(norm, MOST / 2), MOST) / max(norm, MOST / 2)
        if ratio != 1:
            count += 1
            found[name] = tensors[name] * ratio**0.5
            found[up_name] = tensors[up_name] * ratio**0.5
    return found, count


@pytest.mark.parametrize("targets", [("to_q", "to_k", "to_v", "to_out.0"), ("to_q", "conv1", "conv_in")])
def test_scale_weight_norms_equals_sd_scripts(
    tiny_base: BaseModel, tiny_folder: Path, targets: tuple[str, ...]
) -> None:
    spec = spec_of(
        tiny_folder, target_modules=targets, rank=4, alpha=6.0, scale_weight_norms=MOST, train_text_encoder=True
    )
    with add_adapters(tiny_base, spec) as adapters:
        filled(adapters.parameters, 1)
        with torch.no_grad():
            for number, parameter in enumerate(adapters.parameters.values()):
                parameter.mul_(0.1 if number % 4 > 1 else 1.0)  # every second layer is short
        wanted, count = by_sd_scripts(adapters.tensors(), 6.0 / 4)
        limit = norm_limit(adapters.parameters, spec)
        assert limit is not None
        limit()
        found = adapters.tensors()
    layers = len(found) // 2
    assert 0 < count < layers
    assert int(limit.scaled) == count
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-7)


def test_each_step_of_a_row_ends_within_the_bound_and_before_the_average(
    tiny_base: BaseModel, tiny_folder: Path
) -> None:
    spec = spec_of(tiny_folder, rank=4, scale_weight_norms=MOST, learning_rate=1.0, use_ema=True, ema_decay=0.001)
    with AdapterSlots(tiny_base, spec, count=2, rank=8) as slots:
        slot = slots.assign(1, spec)
        optimizer = SlotOptimizer(slot, spec)
        slots.gradients_JM[1].fill_(1e-3)
        optimizer.step(0)
        weights = slot.adapters.tensors()
        assert optimizer.scaled is not None
        assert int(optimizer.scaled) == len(weights) // 2
        _, count = by_sd_scripts({name: tensor * 0.9999 for name, tensor in weights.items()}, 1.0)
        assert count == 0
        for name, average in optimizer.result().items():
            torch.testing.assert_close(average, weights[name], rtol=1e-2, atol=1e-3)


def test_norm_limit_is_none_without_scale_weight_norms(tiny_folder: Path) -> None:
    assert norm_limit({}, spec_of(tiny_folder)) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"use_dora": True}, "scale_weight_norms conflicts with use_dora"),
        ({"optimizer": "adamw_schedule_free"}, "scale_weight_norms conflicts with adamw_schedule_free"),
        ({"adapter_type": "lokr", "output_formats": ("kohya",)}, "scale_weight_norms needs adapter_type lora"),
    ],
)
def test_scale_weight_norms_is_refused_with_dora_schedule_free_or_lokr(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainSpec.model_validate({"model": "a/b", "dataset": "ds_1", "scale_weight_norms": 1.0, **fields})
