"""Tokens that pass by the middle of the UNet: as many as asked, and always the same ones of the same picture."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.pretrain_feeds import run_of, tiny_config

from giornata.domain.errors import InvalidInput
from giornata.pretrain.recipes import shapes
from giornata.pretrain.training.loop import train
from giornata.pretrain.training.models import new_unet, widths
from giornata.pretrain.training.step import TokenRouting, routed_blocks
from giornata.protocol.pretraining import Architecture
from giornata.protocol.pretraining_checks import parse

PLACES = [(0, 0, "a"), (0, 0, "b")]


def answers(share: float, places: list[tuple[int, int, str]]) -> tuple[list[torch.Size], torch.Tensor]:
    """Sizes that a routed block was shown, and what it made of tokens of 1."""
    unet = new_unet(Architecture.SHAPES, 0)
    seen: list[torch.Size] = []
    routing = TokenRouting(unet, share=share, seed=0)
    block = routed_blocks(unet)[0]
    block.norm1.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    made: list[torch.Tensor] = []
    block.register_forward_hook(lambda _, __, out: made.append(out))
    noise = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    with routing.routing(places):
        unet(
            noise,
            torch.tensor([500, 500]),
            torch.ones(2, 5, 128),
            added_cond_kwargs={"time_ids": torch.zeros(2, 6), "text_embeds": torch.zeros(2, widths(unet)[1] or 0)},
        )
    return seen, made[0]


def test_as_many_tokens_as_asked_go_through_and_the_others_stay() -> None:
    seen, made_BND = answers(0.75, PLACES)
    whole, all_BND = answers(0.75, [])
    assert [size[1] for size in whole] == [16]
    assert [size[1] for size in seen] == [4]
    assert made_BND.shape == all_BND.shape
    again_BND = answers(0.75, PLACES)[1]
    assert torch.equal(made_BND, again_BND)
    other_BND = answers(0.75, [(0, 1, "a"), (0, 1, "b")])[1]
    assert not torch.equal(made_BND, other_BND)


def test_the_blocks_at_the_highest_resolution_are_not_routed() -> None:
    unet = new_unet(Architecture.SHAPES, 0)
    outside = {id(m) for part in (unet.down_blocks[0], unet.up_blocks[-1]) for m in part.modules()}
    routed = routed_blocks(unet)
    assert len(routed) == 4
    assert not {id(block) for block in routed} & outside


def test_a_run_trains_with_it_also_recomputing(tmp_path: Path) -> None:
    losses: dict[str, list[float]] = {}
    settings = {"plain": {}, "routed": {"token_routing": 0.5}}
    settings["recomputed"] = {"token_routing": 0.5, "gradient_checkpointing": True}
    for name, given in settings.items():
        rows: list[float] = []
        config = tiny_config(tmp_path / name, samples=(16,), **given)
        config = replace(config, phases=(replace(config.phases[0], resolution=64),))  # 16 tokens where it is routed
        train(run_of(config, tmp_path / name, report=lambda row, rows=rows: rows.append(row["grad_norm"])))
        losses[name] = rows
    assert losses["routed"] != losses["plain"]
    assert losses["recomputed"] == pytest.approx(losses["routed"], rel=1e-5)


def test_token_routing_with_torch_compile_is_refused() -> None:
    values = shapes().to_json()
    values["train"] |= {"token_routing": 0.5, "torch_compile": True}
    with pytest.raises(InvalidInput, match="cannot be compiled"):
        parse(values)
