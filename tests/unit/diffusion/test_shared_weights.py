"""Bases of one process have one memory for what they have in common, and nothing else in common."""

import copy
from dataclasses import replace

import pytest
import torch

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.shared_weights import SharedWeights
from giornata.diffusion.base.weights_digest import base_sha256


def again(base: BaseModel) -> BaseModel:
    """The same model, loaded a second time."""
    unet, vae, *encoders = (copy.deepcopy(each) for each in (base.unet, base.vae, *base.text_encoders))
    return replace(base, unet=unet, vae=vae, text_encoders=tuple(encoders))


def memory(base: BaseModel) -> dict[str, int]:
    modules = {"unet": base.unet, "vae": base.vae, **{str(at): each for at, each in enumerate(base.text_encoders)}}
    return {
        f"{name}.{inner}": tensor.data_ptr()
        for name, module in modules.items()
        for inner, tensor in module.named_parameters()
    }


@pytest.fixture
def two(tiny_base: BaseModel) -> tuple[BaseModel, BaseModel]:
    return again(tiny_base), again(tiny_base)


def test_equal_bases_have_one_memory_and_modules_of_their_own(two: tuple[BaseModel, BaseModel]) -> None:
    one, other = two
    before, shared = base_sha256(other), SharedWeights()
    shared.join("one", one)
    assert not shared.shares("one")
    shared.join("other", other)
    assert memory(one) == memory(other)
    assert shared.shares("one")
    assert shared.shares("other")
    assert base_sha256(again(other)) == before
    assert one.unet is not other.unet


def test_weights_that_differ_are_not_shared(two: tuple[BaseModel, BaseModel]) -> None:
    one, other = two
    name, changed = next(iter(other.unet.named_parameters()))
    changed.data += 1
    shared = SharedWeights()
    shared.join("one", one)
    shared.join("other", other)
    ours, theirs = memory(one), memory(other)
    assert {each for each in ours if ours[each] != theirs[each]} == {f"unet.{name}"}
    assert not torch.equal(dict(one.unet.named_parameters())[name], changed)


def test_other_precisions_share_nothing(two: tuple[BaseModel, BaseModel]) -> None:
    one, other = two
    for module in (other.unet, other.vae, *other.text_encoders):
        module.to(torch.bfloat16)
    shared = SharedWeights()
    shared.join("one", one)
    shared.join("other", other)
    assert not shared.shares("other")


def test_a_base_is_alone_again_when_the_other_has_left(two: tuple[BaseModel, BaseModel]) -> None:
    one, other = two
    shared = SharedWeights()
    shared.join("one", one)
    shared.join("other", other)
    shared.leave("one")
    assert not shared.shares("other")
    assert not shared.shares("one")
