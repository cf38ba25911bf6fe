"""Gradient checkpointing changes no bit, and selective leaves the lowest resolution alone."""

import pytest
import torch

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.recompute import Recompute, lowest_blocks, recomputing, set_recompute
from giornata.protocol.specs import TrainSpec


def gradients(base: BaseModel, recompute: Recompute) -> dict[str, torch.Tensor]:
    """Of every adapter weight, for one batch."""
    spec = TrainSpec(
        pretrained_model_name_or_path="m",
        dataset="ds_1",
        seed=1,
        rank=2,
        target_modules=("to_q", "to_v", "to_out.0", "conv1", "ff.net.2"),
    )
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    pooled = base.text_encoders[1].config.projection_dim
    with add_adapters(base, spec) as adapters, recomputing(base.unet, recompute):
        with torch.no_grad():
            for parameter in adapters.parameters.values():
                parameter.add_(0.01)  # B is zero at first, and then A has no gradient
        output = base.unet(
            normal(2, 4, 16, 16),
            torch.tensor([10, 900]),
            normal(2, 77, base.unet.config.cross_attention_dim),
            added_cond_kwargs={"text_embeds": normal(2, pooled), "time_ids": torch.full((2, 6), 128.0)},
        ).sample
        output.square().mean().backward()
        return {name: parameter.grad for name, parameter in adapters.parameters.items() if parameter.grad is not None}


@pytest.mark.parametrize("recompute", [Recompute.SELECTIVE, Recompute.FULL])
def test_gradients_are_the_same_to_the_bit(tiny_base: BaseModel, recompute: Recompute) -> None:
    plain, again = gradients(tiny_base, Recompute.OFF), gradients(tiny_base, recompute)
    assert plain.keys() == again.keys()
    assert any(bool(gradient.abs().sum() > 0) for gradient in plain.values())
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_full_gradient_checkpointing_covers_all_blocks_and_selective_spares_lowest_resolution(
    tiny_base: BaseModel,
) -> None:
    unet = tiny_base.unet
    lowest = {id(module) for block in lowest_blocks(unet) for module in block.modules()}
    able = [module for module in unet.modules() if hasattr(module, "gradient_checkpointing")]

    def switched(wanted: Recompute) -> set[int]:
        set_recompute(unet, wanted)
        return {id(module) for module in able if module.gradient_checkpointing}

    full, selective = switched(Recompute.FULL), switched(Recompute.SELECTIVE)
    assert full == {id(module) for module in able}
    assert selective == full - lowest
    assert selective
    assert not switched(Recompute.OFF)


def test_gradient_checkpointing_is_off_after_block_that_raised(tiny_base: BaseModel) -> None:
    with pytest.raises(KeyError), recomputing(tiny_base.unet, Recompute.SELECTIVE):
        set_recompute(tiny_base.unet, Recompute.FULL)
        raise KeyError
    assert not tiny_base.unet.is_gradient_checkpointing


@pytest.mark.parametrize(("said", "meant"), [(True, "full"), (False, "off"), ("selective", "selective")])
def test_the_spec_says_it(said: bool | str, meant: str) -> None:
    spec = TrainSpec(pretrained_model_name_or_path="m", dataset="ds_1", gradient_checkpointing=said)
    assert Recompute.of(spec.gradient_checkpointing).value == meant
