"""Which LoRA files rows can have, and what is said of those that they cannot."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.adapter.row_adapters import RowAdapters
from giornata.diffusion.adapter.tokens import TOKENS
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.files.formats import write_kohya
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.files.row_lora import read_row_lora
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.specs import TrainSpec

LAYER = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"


def spec_of(**fields: Any) -> TrainSpec:
    defaults = {"model": "owner/name", "dataset": "ds_1", "seed": 5, "rank": 4, "resolution": 64}
    return TrainSpec.model_validate({**defaults, "instance_prompt": "a photo of sks toy", **fields})


def lora_file(base: BaseModel, path: Path, **fields: Any) -> Path:
    spec, draw = spec_of(**fields), torch.Generator().manual_seed(0)
    with add_adapters(base, spec) as adapters:
        tensors = adapters.tensors()
    tensors = {name: value + 0.1 * torch.randn(value.shape, generator=draw) for name, value in tensors.items()}
    facts = facts_of(spec, step=7, layers_per_block=1, family=base.family)
    return write_kohya(path / "lora.safetensors", tensors, facts, dtype="float32")


def faults_of(path: Path, base: BaseModel) -> list[Fault]:
    with pytest.raises(InvalidInput) as refusal:
        read_row_lora(path, base, where="loras[0]")
    assert {fault.where for fault in refusal.value.faults} == {"loras[0]"}
    return list(refusal.value.faults)


def pair(outputs: int, inputs: int, rank: int = 2) -> dict[str, torch.Tensor]:
    return {".lora_A.weight": torch.ones(rank, inputs), ".lora_B.weight": torch.ones(outputs, rank)}


def saved(path: Path, **layers: dict[str, torch.Tensor]) -> Path:
    file = path / "made.safetensors"
    save_file({name + part: tensor for name, parts in layers.items() for part, tensor in parts.items()}, file)
    return file


@pytest.mark.parametrize("ours_is_sdxl", [True, False])
def test_lora_of_another_family_is_refused(
    tiny_base: BaseModel, tiny_sd15_base: BaseModel, tmp_path: Path, ours_is_sdxl: bool
) -> None:
    ours, other = (tiny_base, tiny_sd15_base) if ours_is_sdxl else (tiny_sd15_base, tiny_base)
    (fault,) = faults_of(lora_file(other, tmp_path), ours)
    assert fault.message == f"was trained on {other.family.title}, and the base model is of {ours.family.title}"


def test_file_that_does_not_name_its_family_is_refused_by_its_layers(
    tiny_sd15_base: BaseModel, tmp_path: Path
) -> None:
    path = saved(
        tmp_path, **{LAYER: pair(64, 64), "text_encoder_2.text_model.encoder.layers.0.mlp.fc1": pair(64, 32)}
    )
    (fault,) = faults_of(path, tiny_sd15_base)
    assert "keys that mean nothing for this base model: text_encoder_2" in fault.message


def test_layers_of_other_sizes_and_values_that_are_not_finite_are_refused(
    tiny_base: BaseModel, tmp_path: Path
) -> None:
    (fault,) = faults_of(saved(tmp_path, **{LAYER: pair(64, 48)}), tiny_base)
    assert f"{LAYER} (64 x 48, not 64 x 64)" in fault.message
    broken = pair(64, 64)
    broken[".lora_A.weight"][0, 0] = float("nan")
    (fault,) = faults_of(saved(tmp_path, **{LAYER: broken}), tiny_base)
    assert "not finite" in fault.message


def test_half_a_layer_is_refused(tiny_base: BaseModel, tmp_path: Path) -> None:
    half = {".lora_A.weight": torch.ones(2, 64)}
    (fault,) = faults_of(saved(tmp_path, **{LAYER: half}), tiny_base)
    assert "no .lora_up.weight" in fault.message


def test_dora_is_refused_by_its_name(tiny_base: BaseModel, tmp_path: Path) -> None:
    (fault,) = faults_of(lora_file(tiny_base, tmp_path, use_dora=True), tiny_base)
    assert fault.message == "holds DoRA, which rows of a batch cannot have each for itself"


def test_lokr_of_a_low_rank_has_the_numbers_of_peft(tiny_base: BaseModel, tmp_path: Path) -> None:
    spec = spec_of(
        adapter_type="lokr",
        output_formats=("kohya",),
        target_modules=("to_q",),
        decompose_factor=2,
        rank=2,
        alpha=3.0,
    )
    draw = torch.Generator().manual_seed(0)
    layer = tiny_base.unet.get_submodule(LAYER.removeprefix("unet."))
    inputs = torch.randn((1, 5, 64), generator=draw)
    with add_adapters(tiny_base, spec) as adapters:
        tensors = {
            name: value + 0.1 * torch.randn(value.shape, generator=draw) for name, value in adapters.tensors().items()
        }
        adapters.load(tensors)
        theirs = tiny_base.unet.get_submodule(LAYER.removeprefix("unet."))(inputs)
    facts = facts_of(spec, step=7, layers_per_block=1, family=tiny_base.family)
    path = write_kohya(tmp_path / "lokr.safetensors", tensors, facts, dtype="float32")
    with RowAdapters(tiny_base) as rows:
        rows.load("lokr", read_row_lora(path, tiny_base).unet)
        with rows.rows([{"lokr": 1.0}]):
            ours = tiny_base.unet.get_submodule(LAYER.removeprefix("unet."))(inputs)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(ours, layer(inputs), atol=1e-2)


def test_words_of_a_lora_come_with_it(tiny_base: BaseModel, tmp_path: Path) -> None:
    spec = spec_of(train_text_encoder_ti=True, token_abstraction="TOK", instance_prompt="a photo of TOK")
    with add_adapters(tiny_base, spec) as adapters:
        tensors = adapters.tensors()
    rows = {f"{TOKENS}clip_l": torch.ones(2, 32), f"{TOKENS}clip_g": 2 * torch.ones(2, 32)}
    facts = facts_of(spec, step=7, layers_per_block=1, family=tiny_base.family)
    path = write_kohya(tmp_path / "lora.safetensors", tensors | rows, facts, dtype="float32")
    (word,) = read_row_lora(path, tiny_base).words
    assert word.token == "TOK"
    assert [vectors.tolist() for vectors in word.vectors_NE] == [rows[name].tolist() for name in rows]
