"""q, k and v in one product: the same sums as apart, the same memory, and no answer of another tensor."""

import copy
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import nn

from giornata.diffusion.adapter.batched_lora import BatchedLoraLinear, FusedProjections, StackedLora, families
from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.recompute import Recompute, recomputing
from giornata.protocol.specs import TrainSpec

JOBS, RANK, WIDE, SIZES = 2, 3, 6, (4, 5, 5)


def spec_of(**fields: object) -> TrainSpec:
    return TrainSpec.model_validate({"model": "a/b", "dataset": "ds_1", "seed": 5, "rank": 4, **fields})


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layers_with(bias: bool) -> list[BatchedLoraLinear]:
    made = []
    for number, size in enumerate(SIZES):
        original = nn.Linear(WIDE, size, bias=bias).double().requires_grad_(False)
        original.weight.copy_(numbers(number, size, WIDE))
        made.append(BatchedLoraLinear(original))
    return made


def stacks_for(layers: list[BatchedLoraLinear]) -> list[StackedLora]:
    """One A under the other for all of them, and a B for each; leaves."""
    a_JRI = numbers(10, JOBS, RANK * len(layers), WIDE).requires_grad_()
    scale_J11 = torch.tensor([0.5, 2.0], dtype=torch.float64).view(JOBS, 1, 1)
    return [
        StackedLora(a_JRI=a_JRI, b_JOR=numbers(20 + number, JOBS, size, RANK).requires_grad_(), scale_J11=scale_J11)
        for number, size in enumerate(SIZES)
    ]


@pytest.mark.parametrize("bias", [False, True])
def test_together_they_give_the_formula_and_the_gradients_of_each(bias: bool) -> None:
    layers = layers_with(bias)
    originals = copy.deepcopy([(layer.weight, layer.bias) for layer in layers])
    FusedProjections(layers)
    stacks = stacks_for(layers)
    for layer, stack in zip(layers, stacks, strict=True):
        layer.attach(stack)
    inputs = numbers(30, 2 * JOBS, 7, WIDE).requires_grad_()
    found = [layer(inputs) for layer in layers]
    sum((each * numbers(40 + n, *each.shape)).sum() for n, each in enumerate(found)).backward()
    leaves = [inputs, stacks[0].a_JRI, *(stack.b_JOR for stack in stacks)]
    gradients = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None

    wanted = []
    for number, (weight, shift) in enumerate(originals):
        rows = []
        for job in range(JOBS):
            a_RI = stacks[0].a_JRI[job, number * RANK : (number + 1) * RANK]
            own = inputs[2 * job : 2 * job + 2]
            update = own @ a_RI.T @ stacks[number].b_JOR[job].T * stacks[number].scale_J11[job]
            rows.append(own @ weight.T + (0.0 if shift is None else shift) + update)
        wanted.append(torch.cat(rows))
    sum((each * numbers(40 + n, *each.shape)).sum() for n, each in enumerate(wanted)).backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients, [leaf.grad for leaf in leaves])


def test_fused_projections_answer_other_tensor_afresh_after_broken_or_repeated_pass() -> None:
    """Also after a pass that broke off between q and k, and when one is asked twice."""
    layers = layers_with(bias=False)
    FusedProjections(layers)
    stacks = stacks_for(layers)
    for layer, stack in zip(layers, stacks, strict=True):
        layer.attach(stack)
    first, second = numbers(31, JOBS, 1, WIDE), numbers(32, JOBS, 1, WIDE)
    q, k, v = layers
    with torch.no_grad():
        wanted = [layer(second) for layer in layers]
        q(first)  # nobody asks for its k and v
        assert torch.equal(k(second), wanted[1])
        assert torch.equal(k(second), wanted[1])
        assert torch.equal(q(second), wanted[0])
        q(first)
        for layer in layers:
            layer.attach(None)
        for layer, stack in zip(layers, stacks, strict=True):
            layer.attach(stack)
        assert torch.equal(v(first), [layer(first.clone()) for layer in layers][2])


def test_apart_they_are_the_original_layers() -> None:
    layers = layers_with(bias=True)
    inputs = numbers(33, 3, WIDE)
    before = [layer(inputs) for layer in layers]
    FusedProjections(layers)
    assert all(torch.equal(layer(inputs), each) for layer, each in zip(layers, before, strict=True))


@pytest.fixture
def slots(tiny_base: BaseModel) -> Iterator[AdapterSlots]:
    with AdapterSlots(tiny_base, spec_of(train_text_encoder=True), count=2) as made:
        yield made


def test_the_weights_are_held_once(tiny_base: BaseModel) -> None:
    def held_bytes() -> int:
        storages = [each.untyped_storage() for each in tiny_base.unet.parameters()]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    values = {name: each.clone() for name, each in tiny_base.unet.state_dict().items()}
    before = held_bytes()
    with AdapterSlots(tiny_base, spec_of(), count=1):
        assert held_bytes() == before
    assert held_bytes() == before
    assert all(torch.equal(each, values[name]) for name, each in tiny_base.unet.state_dict().items())


def test_families_are_q_k_v_of_a_self_attention_and_k_v_of_a_cross_attention(tiny_base: BaseModel) -> None:
    found = families(tiny_base.unet)
    assert found
    for names in found:
        parent = tiny_base.unet.get_submodule(names[0].rpartition(".")[0])
        wanted = ["to_k", "to_v"] if parent.is_cross_attention else ["to_q", "to_k", "to_v"]
        assert [name.rpartition(".")[2] for name in names] == wanted
    assert {len(names) for names in found} == {2, 3}
    encoder = families(tiny_base.text_encoders[0])
    assert [name.rpartition(".")[2] for name in encoder[0]] == ["q_proj", "k_proj", "v_proj"]


def test_the_a_of_a_family_is_one_tensor_of_the_row(slots: AdapterSlots) -> None:
    joined = [family for family in slots.layout.families if len(family.b) > 1]
    assert {len(family.b) for family in joined} == {2, 3}
    assert sum(len(family.b) for family in slots.layout.families) * 2 == len(slots.layout.places)
    taken = sorted((place.start, place.end) for place in slots.layout.places)
    assert taken[0][0] == 0
    assert all(end == start for (_, end), (start, _) in pairwise(taken))
    for family in joined:
        inside = [place for place in slots.layout.places if family.a.start <= place.start < family.a.end]
        assert len(inside) == len(family.b)
        assert all(place.is_a for place in inside)


@pytest.mark.parametrize("wanted", [Recompute.SELECTIVE, Recompute.FULL])
def test_computing_again_gives_the_same_bits(tiny_base: BaseModel, wanted: Recompute) -> None:
    def gradients(recompute: Recompute) -> torch.Tensor:
        with AdapterSlots(tiny_base, spec_of(), count=1) as slots:
            slots.assign(0, spec_of())
            slots.set_width(1)
            slots.values_JM.add_(0.01)
            tiny_base.unet.train()
            with slots.on(), recomputing(tiny_base.unet, recompute):
                latents = numbers(50, 2, 4, 8, 8).float()
                ids = {"text_embeds": torch.ones((2, 32)), "time_ids": torch.full((2, 6), 64.0)}
                text = numbers(51, 2, 77, 64).float()
                tiny_base.unet(latents, 5, text, added_cond_kwargs=ids).sample.square().mean().backward()
            tiny_base.unet.eval()
            return slots.gradients_JM.clone()

    plain, again = gradients(Recompute.OFF), gradients(wanted)
    assert float(plain.abs().max()) > 0
    assert torch.equal(plain, again)
