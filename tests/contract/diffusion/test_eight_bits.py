"""A base held in 8 bits is a plain base with rounded weights, to the last bit, and keeps less of it.

Shapes: O, I outputs and inputs of a layer; B pictures, H x W places.
"""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.claimed_cuda.counting import PRODUCTS, Count
from torch import nn

from giornata.diffusion.adapter.batched_lora import adapters_off
from giornata.diffusion.adapter.lora import Adapters, add_adapters
from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.base.eight_bits import (
    EIGHT_BITS,
    FORMATS,
    EightBitConv2d,
    EightBitLinear,
    held_base,
    hold,
    narrowed,
    widened,
    working_bytes,
)
from giornata.diffusion.base.memory import ActivationPrecision, kept_bytes
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.base.recompute import Recompute, recomputing
from giornata.diffusion.base.unet_layers import layers_of
from giornata.diffusion.draws.randomness import normal
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.base_model import BaseQuantization
from giornata.workloads.train.device.memory_budget import adapter_shapes, sizes_of

INT8, FP8, NONE = BaseQuantization.INT8, BaseQuantization.FP8, BaseQuantization.NONE
KINDS = (INT8, FP8)
CPU = torch.device("cpu")


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return normal(seed, "test", *shape, shape=shape)


# ---- the numbers


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """All finite numbers of a format, less the one of int8 that has no opposite."""
    found = torch.arange(-128, 128, dtype=torch.int16).to(torch.int8).view(dtype).float()
    return found[found.isfinite() & (found.abs() <= found[found.isfinite()].max())]


@pytest.mark.parametrize("kind", KINDS)
def test_each_weight_is_the_nearest_that_the_format_has(kind: BaseQuantization) -> None:
    weight_OI = numbers(24, 50) * torch.logspace(-6, 3, 24)[:, None]
    held, scale_O1 = narrowed(weight_OI, FORMATS[kind])
    assert held.dtype is FORMATS[kind]
    assert scale_O1.dtype is torch.float32
    choices = every_number(FORMATS[kind])
    assert torch.equal(scale_O1[:, 0], weight_OI.abs().amax(dim=1) / choices.max())
    wanted_OI = weight_OI / scale_O1
    distance = (wanted_OI[..., None] - choices).abs()
    assert torch.equal((wanted_OI - held.float()).abs(), distance.amin(dim=-1))
    assert torch.equal(widened(held, scale_O1, torch.float32), held.float() * scale_O1)


@pytest.mark.parametrize("kind", KINDS)
def test_ties_go_to_the_even_number(kind: BaseQuantization) -> None:
    between = {
        INT8: ([127.0, 0.5, 1.5, -2.5], [127, 0, 2, -2]),
        FP8: ([448.0, 17.0, 19.0, -21.0], [448, 16, 20, -20]),
    }
    given, wanted = between[kind]
    held, scale = narrowed(torch.tensor([given]), FORMATS[kind])
    assert float(scale) == 1.0
    assert held.float().tolist() == [wanted]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_widened_weights_are_the_products_in_float32_rounded_once(kind: BaseQuantization, dtype: torch.dtype) -> None:
    """So a job on a base that an earlier version held in 8 bits goes on with the same bits."""
    held, scale = narrowed(numbers(24, 6, 3, 3) * torch.logspace(-6, 3, 24)[:, None, None, None], FORMATS[kind])
    found = widened(held, scale, dtype)
    assert found.dtype is dtype
    assert torch.equal(found, (held.float() * scale).to(dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_zero_stay_zero(kind: BaseQuantization) -> None:
    weight = numbers(3, 2, 3, 3)
    weight[1] = 0.0
    held, scale = narrowed(weight, FORMATS[kind])
    assert scale.shape == (3, 1, 1, 1)
    assert torch.equal(widened(held, scale, torch.float32)[1], weight[1])


# ---- the layers


def plain_twin(layer: EightBitLinear | EightBitConv2d, like: nn.Module) -> nn.Module:
    twin = copy.deepcopy(like)
    twin.weight = nn.Parameter(layer.weight, requires_grad=False)
    return twin


def layers(name: str, dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    """A layer, and inputs for it."""
    made: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "linear": (nn.Linear(48, 24), numbers(3, 7, 48)),
        "linear without bias": (nn.Linear(48, 24, bias=False), numbers(5, 48)),
        "convolution": (nn.Conv2d(16, 24, 3, padding=1), numbers(2, 16, 9, 10)),
        "with a stride": (nn.Conv2d(16, 24, 3, padding=1, stride=2), numbers(2, 16, 9, 10)),
        "of one place": (nn.Conv2d(16, 24, 1, bias=False), numbers(2, 16, 4, 4)),
    }
    layer, inputs = made[name]
    return layer.requires_grad_(False).to(dtype), inputs.to(dtype)


NAMES = ("linear", "linear without bias", "convolution", "with a stride", "of one place")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp32 inputs under bf16 autocast"])
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_has_the_bits_of_a_plain_one_forward_and_backward(
    name: str, mode: str, kind: BaseQuantization
) -> None:
    original, inputs = layers(name, torch.float32 if mode == "fp32" else torch.bfloat16)
    held = EightBitLinear(original, kind) if isinstance(original, nn.Linear) else EightBitConv2d(original, kind)
    assert held.weight.dtype is original.weight.dtype
    assert not torch.equal(held.weight, original.weight)
    found = []
    for layer in (held, plain_twin(held, original)):
        mine = (inputs.float() if "inputs" in mode else inputs).clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="autocast" in mode):
            outputs = layer(mine)
        (outputs.float() * numbers(*outputs.shape, seed=2)).sum().backward()
        assert mine.grad is not None
        found.append((outputs, mine.grad))
    for one, other in zip(*found, strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_forward_pass_of_8_bit_layer_saves_only_8_bit_weights_and_scale_for_backward(
    name: str, kind: BaseQuantization
) -> None:
    original, inputs = layers(name, torch.bfloat16)
    held = EightBitLinear(original, kind) if isinstance(original, nn.Linear) else EightBitConv2d(original, kind)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.data_ptr()), t)[1], lambda t: t):
        held(inputs.requires_grad_())
    assert set(kept) == {held.held.numbers.data_ptr(), held.held.scale.data_ptr()}


@pytest.mark.parametrize("kind", KINDS)
def test_backward_pass_of_8_bit_linear_layer_multiplies_as_a_plain_one_does(kind: BaseQuantization) -> None:
    """The gradient of what was permuted has strides. As a batch of products it would round otherwise on some CPUs."""
    original, inputs = layers("linear", torch.bfloat16)
    held = EightBitLinear(original, kind)
    products = []
    for layer in (held, plain_twin(held, original)):
        outputs = layer(inputs.clone().requires_grad_())
        with Count() as count:
            outputs.backward(numbers(*outputs.mT.shape).to(outputs.dtype).mT)
        names = {each.__name__ for each in PRODUCTS}
        products.append({name: times for name, times in count.operations.items() if name in names})
    assert products == [{"mm": 1}, {"mm": 1}]


# ---- the UNet


def twins(base: BaseModel, kind: BaseQuantization) -> tuple[BaseModel, BaseModel]:
    """The base in 8 bits, and a plain one with the same weights."""
    held = held_base(replace(base, unet=copy.deepcopy(base.unet)), kind, CPU)
    plain = replace(base, unet=copy.deepcopy(base.unet))
    for name, layer in held.unet.named_modules():
        if isinstance(layer, EIGHT_BITS):
            plain.unet.get_submodule(name).weight = nn.Parameter(layer.weight, requires_grad=False)
    return held, plain


def answer(base: BaseModel, *, side: int = 8) -> torch.Tensor:
    """noise_BCHW of the UNet for two pictures."""
    dtype, config = base.dtype, base.unet.config
    kwargs = {}
    if config.addition_embed_type == "text_time":
        pooled_BP = numbers(2, base.text_encoders[1].config.projection_dim).to(dtype)
        kwargs["added_cond_kwargs"] = {"text_embeds": pooled_BP, "time_ids": torch.full((2, 6), 64.0)}
    prompt_BLD = numbers(2, 77, config.cross_attention_dim).to(dtype)
    noisy_BCHW = numbers(2, 4, side, side).to(dtype)
    answered: torch.Tensor = base.unet(noisy_BCHW, torch.tensor([10, 900]), prompt_BLD, **kwargs).sample
    return answered


@pytest.mark.parametrize("family", ["SDXL", "SD 1.5"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_but_the_ends_of_the_unet_is_held_in_8_bits(
    tiny_base: BaseModel, tiny_sd15_base: BaseModel, family: str, kind: BaseQuantization
) -> None:
    base = tiny_base if family == "SDXL" else tiny_sd15_base
    held, plain = twins(base, kind)
    wide = {n for n, m in held.unet.named_modules() if type(m) in (nn.Linear, nn.Conv2d)}
    assert {name.split(".")[0] for name in wide} <= {"conv_in", "conv_out", "time_embedding", "add_embedding"}
    assert held.unet.dtype is torch.float32
    with torch.no_grad():
        before, after = answer(base), answer(held)
        assert torch.equal(after, answer(plain))
    assert 0 < float((after - before).norm() / before.norm()) < 0.1


ADAPTERS: dict[str, dict[str, object]] = {
    "lora": {"target_modules": ("to_q", "to_out.0", "conv1", "ff.net.0.proj", "proj_in")},
    "dora": {"use_dora": True, "target_modules": ("to_q", "to_k", "conv1", "ff.net.2")},
    "lokr": {"adapter_type": "lokr", "output_formats": ("kohya",), "target_modules": ("to_q", "conv2", "proj_out")},
}


def spec_of(base: BaseModel, **fields: object) -> TrainSpec:
    given = {"model": base.key.split("|")[0], "dataset": "ds_1", "seed": 5, "rank": 4, **fields}
    return TrainSpec.model_validate(given)


def stirred(adapters: Adapters) -> None:
    """Weights that make a difference; B is zero at first."""
    with torch.no_grad():
        for name, parameter in adapters.parameters.items():
            parameter.add_(normal(7, "test", name, shape=tuple(parameter.shape)) * 0.05)


def gradients(base: BaseModel, spec: TrainSpec, recompute: Recompute) -> dict[str, torch.Tensor]:
    with add_adapters(base, spec) as adapters, recomputing(base.unet, recompute):
        stirred(adapters)
        answer(base).float().square().mean().backward()
        return {name: p.grad for name, p in adapters.parameters.items() if p.grad is not None}


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_adapter_gets_the_gradients_of_a_plain_base(
    tiny_base: BaseModel, adapter: str, kind: BaseQuantization, mixed: bool
) -> None:
    spec = spec_of(tiny_base, mixed_precision="bf16" if mixed else "no", **ADAPTERS[adapter])
    base = load_base(spec, device="cpu", dtype=torch.bfloat16) if mixed else tiny_base
    held, plain = twins(base, kind)
    wanted = gradients(plain, spec, Recompute.OFF)
    found = gradients(held, spec, Recompute.FULL if mixed else Recompute.OFF)
    assert found.keys() == wanted.keys()
    assert all(float(gradient.abs().sum()) > 0 for gradient in wanted.values())
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], atol=0, rtol=0)


def test_the_base_is_given_back_in_8_bits(tiny_base: BaseModel) -> None:
    held, _ = twins(tiny_base, INT8)
    before = [(name, type(module)) for name, module in held.unet.named_modules()]
    bare = answer(held).detach()
    with add_adapters(held, spec_of(tiny_base, **ADAPTERS["dora"])) as adapters:
        stirred(adapters)
        assert not torch.equal(answer(held), bare)
        with adapters_off((held.unet,)):
            assert torch.equal(answer(held), bare)
    assert [(name, type(module)) for name, module in held.unet.named_modules()] == before
    assert torch.equal(answer(held), bare)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_on_8_bits_gets_the_gradients_of_a_plain_base(tiny_base: BaseModel, kind: BaseQuantization) -> None:
    spec = spec_of(tiny_base, target_modules=("to_q", "to_k", "ff.net.0.proj"))
    gradients = []
    for base in twins(tiny_base, kind):
        before = [(name, type(module)) for name, module in base.unet.named_modules()]
        with slots_on(base, spec) as slots:
            answer(base).square().mean().backward()
            views = [slots.layout.views(row, slots.ranks) for row in slots.gradients_JM]
            gradients.append([{name: view.clone() for name, view in of_job.items()} for of_job in views])
        assert [(name, type(module)) for name, module in base.unet.named_modules()] == before
    largest = max(float(view.abs().max()) for of_job in gradients[1] for view in of_job.values())
    assert largest > 0
    # On plain weights q, k and v are one product, which may round otherwise.
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5 * largest, rtol=1e-4)


@contextmanager
def slots_on(base: BaseModel, spec: TrainSpec) -> Iterator[AdapterSlots]:
    with AdapterSlots(base, spec, count=2, rank=4) as slots:
        for place in (0, 1):
            stirred(slots.assign(place, spec.model_copy(update={"seed": place})).adapters)
        slots.set_width(2)
        with slots.on():
            yield slots


# ---- how much memory


def held_bytes(unet: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*unet.parameters(), *unet.buffers()))


def kept_for_backward(base: BaseModel, putting: AbstractContextManager[object], *, weights: bool, side: int) -> int:
    """Bytes of a forward pass that autograd holds, each storage once; the base's weights among them or not."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*base.unet.parameters(), *base.unet.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if weights or storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no other takes its place
        return tensor

    with putting, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = answer(base, side=side)
    assert output.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_wide_weights_are_nowhere_between_forward_and_backward(
    tiny_base: BaseModel, kind: BaseQuantization
) -> None:
    spec = spec_of(tiny_base, target_modules=("to_q", "to_v"))
    held, plain = twins(tiny_base, kind)
    assert held_bytes(held.unet) < 0.35 * held_bytes(plain.unet)
    narrow, wide = (kept_for_backward(base, add_adapters(base, spec), weights=True, side=8) for base in (held, plain))
    spared = held_bytes(plain.unet) - held_bytes(held.unet)
    assert narrow < wide - 0.8 * spared  # the first block's weights are kept by neither


@pytest.mark.parametrize("targets", [("to_q", "to_v"), ("to_q", "conv1")])
def test_the_estimate_knows_what_is_not_kept(tiny_base: BaseModel, targets: tuple[str, ...]) -> None:
    spec = spec_of(tiny_base, target_modules=targets, resolution=256)
    held, plain = twins(tiny_base, INT8)
    reckoned = {}
    for base in (held, plain):
        found = layers_of(base.unet, 256)
        adapted = adapter_shapes(found, spec)
        precision = ActivationPrecision.of(mixed=False)
        reckoned[base.unet] = 2 * kept_bytes(found, adapted, precision, Recompute.OFF)
        counted = kept_for_backward(base, add_adapters(base, spec), weights=False, side=32)
        assert reckoned[base.unet] == pytest.approx(counted, rel=0.12)
    assert reckoned[held.unet] < 0.95 * reckoned[plain.unet]


def test_the_fit_counts_the_narrow_weights_and_one_wide_one(tiny_base: BaseModel) -> None:
    held, plain = twins(tiny_base, FP8)
    spec = spec_of(tiny_base, resolution=64)
    others = sizes_of(plain, spec).weights_bytes - held_bytes(plain.unet)
    widest = max(layer.weight.numel() for layer in held.unet.modules() if isinstance(layer, EIGHT_BITS))
    assert working_bytes(held.unet) == widest * 4
    assert working_bytes(plain.unet) == 0
    assert sizes_of(held, spec).weights_bytes == others + held_bytes(held.unet) + 4 * widest


def test_format_none_leaves_the_base_as_it_is(tiny_base: BaseModel) -> None:
    assert held_base(tiny_base, NONE, CPU) is tiny_base
    assert not any(isinstance(module, EIGHT_BITS) for module in tiny_base.unet.modules())


def test_a_layer_that_is_more_than_its_type_says_stays(tmp_path: Path) -> None:
    class Own(nn.Linear):
        pass

    model = nn.ModuleDict(
        {"own": Own(4, 4), "plain": nn.Linear(4, 4), "odd": nn.Conv2d(4, 4, 3, padding_mode="circular")}
    )
    hold(model, INT8)
    assert [type(model[name]) for name in ("own", "plain", "odd")] == [Own, EightBitLinear, nn.Conv2d]
