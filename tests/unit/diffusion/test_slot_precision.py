"""Adapters on a base in bf16: rows and gradients stay float32, and a pass casts them once each way."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.diffusion.test_slots import filled, spec_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from giornata.diffusion.adapter.batched_lora import BatchedLoraLinear, FusedProjections, StackedLora
from giornata.diffusion.adapter.lora import ADAPTER, add_adapters
from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.draws.randomness import normal

SCALE = 3.0 / 5.0


class Casts(TorchDispatchMode):
    """Counts copies into another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.into: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten._to_copy and result.dtype is not args[0].dtype:
            self.into[result.dtype] += 1
        return result


@pytest.fixture(scope="module")
def narrow(tiny_folder: Path) -> BaseModel:
    return load_base(spec_of(tiny_folder), device="cpu", dtype=torch.bfloat16)


def loss_of(base: BaseModel, rows: int) -> torch.Tensor:
    dtype = base.dtype
    latents = torch.stack([normal(row, "latents", shape=(4, 8, 8)) for row in range(rows)]).to(dtype)
    text = torch.stack([normal(row, "text", shape=(77, 64)) for row in range(rows)]).to(dtype)
    ids = {"text_embeds": torch.ones((rows, 32), dtype=dtype), "time_ids": torch.full((rows, 6), 64.0)}
    said = base.unet(latents, torch.full((rows,), 300), text, added_cond_kwargs=ids).sample
    assert said.dtype is dtype
    return said.float().square().mean(dim=(1, 2, 3)).sum()


def gradients_of(base: BaseModel, alphas: tuple[float, ...]) -> list[torch.Tensor]:
    """Of each place's row, after one pass of a picture for each place."""
    with AdapterSlots(base, spec_of(Path("base")), count=len(alphas), rank=8) as slots:
        for place, alpha in enumerate(alphas):
            filled(
                slots.assign(place, spec_of(Path("base"), rank=5, alpha=alpha, seed=place)).adapters.parameters, place
            )
        slots.set_width(len(alphas))
        with slots.on():
            loss_of(base, len(alphas)).backward()
        assert slots.values_JM.dtype is slots.gradients_JM.dtype is torch.float32
        return list(slots.gradients_JM.clone())


@pytest.mark.parametrize("jobs", [1, 2])
def test_layers_that_share_an_input_compute_the_formula_in_bf16(jobs: int) -> None:
    """W·x + B·A·x and its gradients, against the same in float64, within the rounding of bf16."""
    sizes, rank, wide = (4, 5, 5), 3, 6
    draw = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).bfloat16()

    layers = [BatchedLoraLinear(nn.Linear(wide, size).bfloat16().requires_grad_(False)) for size in sizes]
    a_JRI, b_JOR = numbers(jobs, rank * 3, wide), [numbers(jobs, size, rank) for size in sizes]
    inputs, weights = numbers(2 * jobs, 7, wide), [numbers(2 * jobs, 7, size) for size in sizes]
    leaves = [each.requires_grad_() for each in (inputs, a_JRI, *b_JOR)]
    doubles = [each.detach().double().requires_grad_() for each in leaves]

    wanted = torch.zeros((), dtype=torch.float64)
    for number, (layer, weight) in enumerate(zip(layers, weights, strict=True)):
        for job in range(jobs):
            own, a_RI = doubles[0][2 * job : 2 * job + 2], doubles[1][job, number * rank : (number + 1) * rank]
            said = own @ layer.weight.double().T + layer.bias.double() + own @ a_RI.T @ doubles[2 + number][job].T
            wanted = wanted + (said * weight.double()[2 * job : 2 * job + 2]).sum()
    wanted.backward()

    FusedProjections(layers)
    for layer, b in zip(layers, b_JOR, strict=True):
        layer.attach(StackedLora(a_JRI=a_JRI, b_JOR=b, scale_J11=None))
    answers = [layer(inputs) for layer in layers]
    assert {each.dtype for each in answers} == {torch.bfloat16}
    sum((each * weight).float().sum() for each, weight in zip(answers, weights, strict=True)).backward()
    for leaf, double in zip(leaves, doubles, strict=True):
        assert leaf.grad is not None
        assert double.grad is not None
        assert float((leaf.grad - double.grad).norm() / double.grad.norm()) < 0.02


def test_a_neighbors_scale_changes_no_bit(narrow: BaseModel) -> None:
    """Although the rows are multiplied by their scales only when one of them is other than 1."""
    assert torch.equal(gradients_of(narrow, (5.0, 5.0))[0], gradients_of(narrow, (5.0, 3.0))[0])


def test_a_scale_is_in_the_row_before_it_is_rounded(narrow: BaseModel) -> None:
    with AdapterSlots(narrow, spec_of(Path("base")), count=1, rank=5) as slots:
        slot = slots.assign(0, spec_of(Path("base"), rank=5, alpha=3.0))
        filled(slot.adapters.parameters, 1)
        slots.set_width(1)
        with slots.on():
            layers = {name: each for name, each in narrow.unet.named_modules() if isinstance(each, BatchedLoraLinear)}
            name = next(each for each in layers if each.endswith("attn1.to_out.0"))
            stack = layers[name].stack
            assert stack is not None
            a_RI = slot.adapters.parameters[f"unet.{name}.lora_A.weight"]
            assert stack.scale_J11 is None
            assert torch.equal(stack.a_JRI[0], (a_RI.detach() * SCALE).bfloat16())


@pytest.mark.parametrize("rows", [1, 3])
def test_a_pass_casts_the_row_once_each_way(narrow: BaseModel, rows: int) -> None:
    """Beside it only what the UNet is asked about, and what it answers, is cast: the same number as without adapters,
    and one more each way."""
    with AdapterSlots(narrow, spec_of(Path("base")), count=rows, rank=8) as slots:
        for place in range(rows):
            slots.assign(place, spec_of(Path("base"), rank=5, alpha=3.0, seed=place))
        slots.set_width(rows)
        with torch.no_grad(), Casts() as bare:
            loss_of(narrow, rows)
        with Casts() as casts, slots.on():
            loss_of(narrow, rows).backward()
    assert casts.into[torch.bfloat16] <= bare.into[torch.bfloat16] + 2  # the row, and the gradient of the answer
    assert casts.into[torch.float32] == bare.into[torch.float32] + 1  # the row's gradient


def test_peft_alone_computes_under_autocast(narrow: BaseModel) -> None:
    """On a layer whose adapter the lean layer cannot carry, and in no layer around it."""
    seen: dict[str, bool] = {}

    def see(name: str) -> Any:
        def hook(*_: object) -> None:
            seen[name] = torch.is_autocast_enabled("cpu")

        return hook

    with add_adapters(narrow, spec_of(Path("base"), target_modules=("to_q",), use_dora=True)) as adapters:
        hooks = [
            module.register_forward_pre_hook(see(name))
            for name, module in narrow.unet.named_modules()
            if not any(True for _ in module.children())
        ]
        loss_of(narrow, 1).backward()
        for hook in hooks:
            hook.remove()
        assert all(each.grad is None or each.grad.dtype is torch.float32 for each in adapters.parameters.values())
    within = {name for name, mixed in seen.items() if mixed}
    assert within
    assert all(".to_q." in name for name in within)
    assert any(name.endswith(f"lora_A.{ADAPTER}") for name in within)
