"""What each kind of adapter is reckoned to take, held to what autograd keeps and to the numbers that it trains."""

from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from tests.unit.diffusion.test_memory import count_kept, in_a_slot, sdxl  # noqa: F401

from giornata.diffusion.adapter.adapter_plan import why_not_lean
from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.memory import GIB, ActivationPrecision, AdapterShape, multiplied_out_bytes
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.base.recompute import Recompute
from giornata.diffusion.base.unet_layers import LayerKind, layers_of
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.device.memory_budget import MemoryPlan, sizes_of

OFF, SELECTIVE, FULL = Recompute
EVERYWHERE = ("to_k", "to_q", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "conv1", "conv2")
DORA = {"use_dora": True}
LOKR = {"adapter_type": "lokr", "output_formats": ["kohya"]}
PLANS: dict[str, dict[str, Any]] = {
    "LoRA everywhere": {"target_modules": EVERYWHERE},
    "LoRA of a high rank": {"rank": 64},
    "a pattern of ranks": {"rank_pattern": {"to_q": 64, "up_blocks.0.*to_k": 32}},
    "DoRA": DORA,
    "DoRA everywhere": DORA | {"target_modules": EVERYWHERE},
    "DoRA in a block": DORA | {"lora_unet_blocks": ["up_blocks.0"]},
    "LoKr": LOKR,
    "LoKr everywhere": LOKR | {"target_modules": EVERYWHERE},
}


def spec_of(base: BaseModel, **changes: Any) -> TrainSpec:
    fields = {"pretrained_model_name_or_path": base.key.split("|")[0], "dataset": "ds_1", "seed": 1, "rank": 2}
    return TrainSpec.model_validate(fields | {"resolution": 256, "mixed_precision": "no"} | changes)


@pytest.fixture(scope="module", params=["no", "bf16"])
def base_in(request: pytest.FixtureRequest, tiny_base: BaseModel) -> tuple[BaseModel, str]:
    mixed: str = request.param
    base = tiny_base if mixed == "no" else load_base(spec_of(tiny_base), device="cpu", dtype=torch.bfloat16)
    return base, mixed


@pytest.mark.parametrize("plan", list(PLANS))
@pytest.mark.parametrize(("recompute", "under", "over"), [(OFF, 0.88, 1.06), (FULL, 0.85, 1.02)])
def test_estimated_activation_memory_of_adapter_matches_what_autograd_keeps(
    base_in: tuple[BaseModel, str], plan: str, recompute: Recompute, under: float, over: float
) -> None:
    """One picture of 256 px. Weights of an adapter are saved as well; they count among what is trained. With full
    gradient checkpointing a LoKr's matrices are reckoned for the largest unit too, whose turn has not come yet."""
    base, mixed = base_in
    spec = spec_of(base, mixed_precision=mixed, **PLANS[plan])
    sizes = sizes_of(base, spec)
    reckoned = sizes.kept_bytes[recompute] + sizes.multiplied_out_bytes[recompute]
    put_on = add_adapters if why_not_lean(base, spec) else in_a_slot
    assert under < count_kept(base, spec, recompute, 1, put_on) / reckoned < over


@pytest.mark.parametrize("changes", [*PLANS.values(), {"train_text_encoder": True, "rank_pattern": {"q_proj": 8}}])
def test_estimated_memory_of_trained_weights_matches_parameter_count(
    tiny_base: BaseModel, changes: dict[str, Any]
) -> None:
    """Weights, gradients and two moments in float32; of LoKr, whose factors are many shapes, at most that."""
    spec = spec_of(tiny_base, **changes)
    with add_adapters(tiny_base, spec) as adapters:
        numbers = sum(parameter.numel() for parameter in adapters.parameters.values())
    reckoned = sizes_of(tiny_base, spec).trained_bytes
    if spec.adapter_type.value == "lokr":
        assert reckoned >= numbers * 4 * 4
    else:
        assert reckoned == numbers * 4 * 4


def test_copies_in_the_precision_of_the_base_count(tiny_base: BaseModel) -> None:
    plain, mixed = (sizes_of(tiny_base, spec_of(tiny_base, mixed_precision=each)) for each in ("no", "bf16"))
    assert mixed.trained_bytes == plain.trained_bytes * (4 * 4 + 2 + 2 + 4) // (4 * 4)


def test_a_magnitude_costs_pictures_and_a_product_does_not(tiny_base: BaseModel) -> None:
    plain, dora, lokr = (sizes_of(tiny_base, spec_of(tiny_base, **each)) for each in ({}, DORA, LOKR))
    assert dora.kept_bytes[OFF] > 1.2 * plain.kept_bytes[OFF]
    assert lokr.kept_bytes[OFF] <= plain.kept_bytes[OFF]
    one, two = (lokr.activation_bytes(MemoryPlan(recompute=OFF, rows=rows)) for rows in (1, 2))
    assert two - one == lokr.kept_bytes[OFF]
    assert one - lokr.kept_bytes[OFF] == lokr.multiplied_out_bytes[OFF] > 0
    assert not any(plain.multiplied_out_bytes.values())


def test_new_tokens_send_gradients_through_the_text_encoders(tiny_base: BaseModel) -> None:
    without, tokens, adapters = (
        sizes_of(tiny_base, spec_of(tiny_base, **each))
        for each in ({}, {"train_text_encoder_ti": True, "token_abstraction": "sks"}, {"train_text_encoder": True})
    )
    assert without.kept_bytes[FULL] < tokens.kept_bytes[FULL] < adapters.kept_bytes[FULL]


def test_sdxl_with_lokr_takes_its_matrices_besides(sdxl: UNet2DConditionModel) -> None:  # noqa: F811
    """Of the attention's layers in bf16: two bytes for each of their weights, or those of one block at a time."""
    layers = layers_of(sdxl, 1024)
    targets = ("to_k", "to_q", "to_v", "to_out.0")
    adapter_shape = {
        layer.name: AdapterShape(rank=16, multiplied_out=True)
        for layer in layers
        if layer.kind is LayerKind.LINEAR and layer.name.endswith(targets)
    }
    precision = ActivationPrecision.of(mixed=True, lean=False)
    weights = sum(module.weight.numel() for name, module in sdxl.named_modules() if name in adapter_shape)
    off, full = (multiplied_out_bytes(layers, adapter_shape, precision, each) for each in (OFF, FULL))
    assert off == 2 * weights
    assert off > GIB
    assert full == 2 * (6 * 1280**2 + 2 * 1280 * 2048)
