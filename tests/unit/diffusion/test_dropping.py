"""What of an adapter is left out: sd-scripts' formulas, with numbers that any device draws alike."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.diffusion.test_slots import filled, spec_of

from giornata.diffusion.adapter.dropping import Dropping, drawn, for_places, ticket
from giornata.diffusion.adapter.lora import ADAPTER, add_adapters
from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.randomness import normal
from giornata.protocol.specs import TrainSpec

WORDS = 2**64
LAYER = "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q"
DROPOUTS = {"network_dropout": 0.25, "rank_dropout": 0.3, "module_dropout": 0.4}


def split_mix(seed: int, place: int) -> int:
    """Number `place` of the stream, as the paper writes it, in Python's whole numbers."""
    z = (seed + (place + 1) * 0x9E3779B97F4A7C15) % WORDS
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORDS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORDS
    return z ^ (z >> 31)


def mixed(key: int, name: str) -> int:
    """The seed of a layer's stream."""
    layer = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return split_mix((key + layer - 0x9E3779B97F4A7C15) % WORDS, 0)


def kept_by_hand(row: list[int], name: str, places: int, rank: int) -> torch.Tensor:
    """kept_TR of a picture, by sd-scripts' rules: F.dropout, a mask over ranks, and a module that is passed over."""
    own, together, network, ranks, module = row
    seed, of_module = mixed(own, name), mixed(together, name)
    if split_mix(of_module, 2**41) >> 40 < module:
        return torch.zeros(places, rank)
    kept = torch.empty(places, rank)
    for place in range(places):
        for r in range(rank):
            number = split_mix(seed, place * 512 + r) >> 40 >= network
            of_rank = split_mix(seed, 2**40 + r) >> 40 >= ranks
            kept[place, r] = number and of_rank
    return kept / (1 - network / 2**24) / (1 - ranks / 2**24)


def tickets(spec: TrainSpec, count: int, step: int = 0) -> torch.Tensor:
    return torch.tensor([ticket(spec, "instance", (step, 0, place)) for place in range(count)])


def test_the_stream_is_split_mix() -> None:
    seeds = torch.tensor([0, 1, -5, 2**62])
    for place in (0, 1, 7, 2**41):
        wanted = [split_mix(seed % WORDS, place) >> 40 for seed in seeds.tolist()]
        assert drawn(seeds, place).tolist() == wanted
    # The first number of seed 1234567, published with the reference implementation.
    assert split_mix(1234567, 0) == 6457827717110365317


@pytest.mark.parametrize("fields", [DROPOUTS, *({name: part} for name, part in DROPOUTS.items())])
def test_a_layer_leaves_out_what_sd_scripts_would(fields: dict[str, float]) -> None:
    spec = spec_of(Path("base"), **fields)
    rows = tickets(spec, 4)
    low = normal(1, "low", shape=(4, 6, 3))
    dropping = Dropping()
    layer = dropping.of_layer("unet.somewhere")
    assert layer(low) is low  # nothing is left out unless a step is made
    with dropping.during(rows):
        found = layer(low)
        together = layer(low.reshape(1, 24, 3))
        channels = layer.of_channels(low.reshape(4, 2, 3, 3).permute(0, 3, 1, 2))
    wanted = torch.stack([kept_by_hand(row, "unet.somewhere", 6, 3) for row in rows.tolist()]) * low
    torch.testing.assert_close(found, wanted)
    assert torch.equal(together.reshape(found.shape), found)
    assert torch.equal(channels.permute(0, 2, 3, 1).reshape(found.shape), found)
    assert dropping.tickets_B5 is None


def test_shares_are_those_that_were_asked_for_and_the_mean_stays() -> None:
    spec, dropping = spec_of(Path("base"), **DROPOUTS), Dropping()
    layer = dropping.of_layer("unet.layer")
    ones = torch.ones(400, 20, 8)
    with dropping.during(torch.cat([tickets(spec, 4, step) for step in range(100)])):
        kept = layer(ones)
    alive = kept.flatten(1).any(dim=1)  # a module is left out for a whole micro-batch of four
    assert torch.equal(alive, alive.view(100, 4)[:, :1].expand(100, 4).flatten())
    assert float(alive.float().mean()) == pytest.approx(0.6, abs=0.12)
    assert float(kept[alive].mean()) == pytest.approx(1.0, abs=0.05)
    whole_ranks = kept[alive].any(dim=1)
    assert float(whole_ranks.float().mean()) == pytest.approx(0.7, abs=0.04)
    numbers = (kept[alive] > 0).float().sum() / (whole_ranks.sum() * 20)
    assert float(numbers) == pytest.approx(0.75, abs=0.02)


def test_draws_differ_by_seed_step_place_role_and_layer() -> None:
    spec, other = spec_of(Path("base"), **DROPOUTS), spec_of(Path("base"), seed=6, **DROPOUTS)
    rows = [
        ticket(spec, "instance", (0, 0, 0)),
        ticket(spec, "instance", (1, 0, 0)),
        ticket(spec, "instance", (0, 0, 1)),
        ticket(spec, "class", (0, 0, 0)),
        ticket(other, "instance", (0, 0, 0)),
    ]
    assert len({row[0] for row in rows}) == len(rows)
    assert rows[0][1] == rows[2][1] == rows[3][1] != rows[1][1]
    dropping = Dropping()
    with dropping.during(torch.tensor(rows[:1])):
        one, another = (dropping.of_layer(name)(torch.ones(1, 9, 4)) for name in ("unet.a", "unet.b"))
    assert not torch.equal(one, another)


def answers(base: BaseModel, inputs: torch.Tensor) -> torch.Tensor:
    return base.unet.get_submodule(LAYER)(inputs)


def formula(base: BaseModel, adapters: dict[str, torch.Tensor], inputs: torch.Tensor, kept: torch.Tensor) -> Any:
    """sd-scripts' LoRAModule.forward: W x + scale · up(mask(down x)), scale = 1 here."""
    layer = base.unet.get_submodule(LAYER)
    layer = layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer
    down, up = (adapters[f"unet.{LAYER}.lora_{letter}.weight"] for letter in "AB")
    return torch.nn.functional.linear(inputs, layer.weight, layer.bias) + (inputs @ down.T * kept) @ up.T


def test_the_lean_layer_and_pefts_leave_out_the_same(tiny_base: BaseModel, tiny_folder: Path) -> None:
    spec = spec_of(tiny_folder, rank=3, **DROPOUTS)
    wide = tiny_base.unet.get_submodule(LAYER).in_features
    inputs, rows = normal(1, "inputs", shape=(4, 5, wide)), tickets(spec, 4)
    kept = torch.stack([kept_by_hand(row, f"unet.{LAYER}", 5, 3) for row in rows.tolist()])

    def compared(answer: Callable[[], torch.Tensor], weights: dict[str, torch.Tensor], dropping: Dropping) -> None:
        with dropping.during(rows):
            torch.testing.assert_close(answer(), formula(tiny_base, weights, inputs, kept), rtol=1e-4, atol=1e-5)
        plain = formula(tiny_base, weights, inputs, torch.ones(()))
        torch.testing.assert_close(answer(), plain, rtol=1e-4, atol=1e-5)

    with torch.no_grad():
        with add_adapters(tiny_base, spec) as adapters:
            filled(adapters.parameters, 1)
            compared(lambda: answers(tiny_base, inputs), adapters.tensors(), adapters.dropping)
            assert ADAPTER in tiny_base.unet.get_submodule(LAYER).lora_A
        with AdapterSlots(tiny_base, spec, count=1) as slots:
            slot = slots.assign(0, spec)
            slots.set_width(1)
            filled(slot.adapters.parameters, 1)
            with slots.on():
                compared(lambda: answers(tiny_base, inputs), slot.adapters.tensors(), slots.dropping)


def test_jobs_in_one_batch_leave_out_each_their_own(tiny_base: BaseModel, tiny_folder: Path) -> None:
    """Whatever the rank that all are padded to, and beside one that leaves nothing out."""
    specs = [spec_of(tiny_folder, rank=3, **DROPOUTS), spec_of(tiny_folder, rank=2)]
    wide = tiny_base.unet.get_submodule(LAYER).in_features
    inputs = normal(1, "inputs", shape=(4, 5, wide))
    rows = for_places([tickets(specs[0], 2), None], 2, torch.device("cpu"))
    assert rows is not None
    kept = torch.stack([kept_by_hand(row, f"unet.{LAYER}", 5, 3) for row in rows[:2].tolist()])
    with torch.no_grad(), AdapterSlots(tiny_base, specs[0], count=2, rank=8) as slots:
        placed = [slots.assign(place, spec) for place, spec in enumerate(specs)]
        slots.set_width(2)
        for number, slot in enumerate(placed):
            filled(slot.adapters.parameters, number)
        with slots.on():
            plain = answers(tiny_base, inputs)
            with slots.dropping.during(rows):
                found = answers(tiny_base, inputs)
        wanted = formula(tiny_base, placed[0].adapters.tensors(), inputs[:2], kept)
    torch.testing.assert_close(found[:2], wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[2:], plain[2:])
    assert for_places([None, None], 2, torch.device("cpu")) is None


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"adapter_type": "lokr", "output_formats": ("kohya",)}, "{} needs adapter_type lora"),
        ({"compile": "on"}, "{} conflicts with compile on"),
    ],
)
def test_dropout_conflicting_with_lokr_or_compile_is_refused(name: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.format(name)):
        TrainSpec.model_validate({"model": "a/b", "dataset": "ds_1", name: 0.5, **fields})
