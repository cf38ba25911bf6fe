"""Another checkpoint in warm modules is that checkpoint to the byte, and what hangs on the UNet stays."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from giornata.diffusion.adapter.row_adapters import RowAdapters
from giornata.diffusion.base.low_rank import LowRank
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.base.swap import can_swap, copied_base, swap_base
from giornata.diffusion.base.weights_digest import base_sha256, forget_digest
from giornata.diffusion.draws.randomness import normal
from giornata.protocol.specs import TrainSpec

LAYER = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"


@pytest.fixture
def warm(tiny_folder: Path) -> BaseModel:
    spec = TrainSpec(pretrained_model_name_or_path=str(tiny_folder), dataset="ds_1", seed=1, resolution=64)
    return load_base(spec, device="cpu", dtype=torch.float32)


def another(base: BaseModel) -> BaseModel:
    """A checkpoint of the same shapes with other weights in every part."""
    unet, vae, *encoders = (copy.deepcopy(each) for each in (base.unet, base.vae, *base.text_encoders))
    for module in (unet, vae, *encoders):
        for name, parameter in module.named_parameters():
            parameter.data += 0.01 * normal(7, "another", name, shape=tuple(parameter.shape))
    return replace(base, unet=unet, vae=vae, text_encoders=tuple(encoders), key="another")


def answer(base: BaseModel) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    more = {"text_embeds": torch.ones((1, 32)), "time_ids": torch.full((1, 6), 64.0)}
    latents_BCHW, text_BLD = torch.randn((1, 4, 8, 8), generator=draw), torch.randn((1, 77, 64), generator=draw)
    with torch.no_grad():
        return base.unet(latents_BCHW, 300, text_BLD, added_cond_kwargs=more).sample


def test_swapped_base_is_the_other_to_the_byte_in_the_same_modules(warm: BaseModel) -> None:
    other = another(warm)
    before, expected, drawn = base_sha256(warm), base_sha256(other), answer(other)
    modules = [warm.unet, warm.vae, *warm.text_encoders]
    parameters = {name: value.data_ptr() for name, value in warm.unet.named_parameters()}
    swapped = swap_base(warm, other)
    assert swapped.key == "another"
    assert base_sha256(swapped) == expected != before
    assert torch.equal(answer(swapped), drawn)
    kept = [swapped.unet, swapped.vae, *swapped.text_encoders]
    assert all(one is other for one, other in zip(kept, modules, strict=True))
    assert {name: value.data_ptr() for name, value in swapped.unet.named_parameters()} == parameters


def test_adapters_stay_on_a_swapped_base(warm: BaseModel) -> None:
    other = another(warm)
    factors = {LAYER: LowRank(down=torch.full((2, 64), 0.1), up_OR=torch.full((64, 2), 0.1))}
    with RowAdapters(other) as adapters:
        adapters.load("a", factors)
        with adapters.rows([{"a": 1.0}]):
            expected = answer(other)
    with RowAdapters(warm) as adapters:
        adapters.load("a", factors)
        swapped = swap_base(warm, other)
        with adapters.rows([{"a": 1.0}]):
            assert torch.equal(answer(swapped), expected)
    assert not torch.equal(answer(swapped), expected)


def test_part_of_other_settings_takes_the_place_of_the_warm_one(warm: BaseModel) -> None:
    other = another(warm)
    other.vae.register_to_config(scaling_factor=0.5)
    expected = base_sha256(other)
    swapped = swap_base(warm, other)
    assert swapped.vae is not warm.vae
    assert swapped.vae.config.scaling_factor == 0.5
    assert base_sha256(swapped) == expected
    assert swapped.unet is warm.unet


@pytest.mark.parametrize("alike", [True, False])
def test_checkpoint_that_was_swapped_in_stays_as_it_was(warm: BaseModel, alike: bool) -> None:
    other = another(warm)
    if not alike:
        other.vae.register_to_config(scaling_factor=0.5)
    expected, places = base_sha256(other), _places(other)
    _spoil(swap_base(warm, other))
    for module in _modules(other):
        forget_digest(module)
    assert (base_sha256(other), _places(other)) == (expected, places)


def test_copied_base_has_equal_weights_in_memory_of_its_own(warm: BaseModel) -> None:
    expected, drawn = base_sha256(warm), answer(warm)
    made = copied_base(warm, torch.device("cpu"))
    assert (base_sha256(made), made.key) == (expected, warm.key)
    assert torch.equal(answer(made), drawn)
    assert _places(made).isdisjoint(_places(warm))
    assert not any(each.requires_grad or module.training for module in _modules(made) for each in module.parameters())
    _spoil(made)
    assert torch.equal(answer(warm), drawn)


def _modules(base: BaseModel) -> list[torch.nn.Module]:
    return [base.unet, base.vae, *base.text_encoders]


def _places(base: BaseModel) -> set[int]:
    return {each.data_ptr() for module in _modules(base) for each in (*module.parameters(), *module.buffers())}


def _spoil(base: BaseModel) -> None:
    for module in _modules(base):
        for each in module.parameters():
            each.data.zero_()


def test_unet_of_another_shape_is_refused_and_nothing_changes(warm: BaseModel, tiny_sd15_base: BaseModel) -> None:
    drawn = answer(warm)
    other = another(warm)
    other.unet.register_to_config(norm_eps=1e-3)
    for different in (tiny_sd15_base, other, replace(another(warm), dtype=torch.bfloat16)):
        assert not can_swap(warm, different)
        with pytest.raises(ValueError, match="differ in more than their weights"):
            swap_base(warm, different)
    assert torch.equal(answer(warm), drawn)
