"""Any checkpoint becomes a user's file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.files.export import export_checkpoint, main
from giornata.diffusion.files.formats import Format, write_lora
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.files.model_card import hashes_of
from giornata.domain.errors import InvalidInput
from giornata.protocol.specs import TrainSpec

ORIGIN = {"data_sha256": "d" * 64, "base_sha256": "b" * 64}


@pytest.fixture(scope="module")
def spec(tiny_folder: Path) -> TrainSpec:
    fields = {"model": str(tiny_folder), "dataset": "ds_1", "seed": 5, "rank": 4, "alpha": 2, "resolution": 64}
    return TrainSpec.model_validate({**fields, "instance_prompt": "sks toy", "output_dtype": "bfloat16"})


@pytest.fixture(scope="module")
def weights(tiny_base: BaseModel, spec: TrainSpec) -> dict[str, torch.Tensor]:
    with add_adapters(tiny_base, spec) as adapters:
        return {name: value + 0.01 for name, value in adapters.tensors().items()}


def checkpoint(path: Path, spec: TrainSpec, weights: dict[str, torch.Tensor], **changes: Any) -> Path:
    tensors = {f"adapter.{name}": value for name, value in weights.items()}
    tensors |= {f"optimizer.exp_avg.{name}": value * 2 for name, value in weights.items()}
    told = {"step": 12, "spec": spec.model_dump(mode="json") | changes, "fingerprint": {}, **ORIGIN}
    save_file(tensors, path, metadata={"giornata": json.dumps(told, sort_keys=True)})
    return path


@pytest.mark.parametrize("kind", ["kohya", "diffusers"])
def test_the_file_is_the_one_that_the_job_would_have_written(
    tmp_path: Path, spec: TrainSpec, weights: dict[str, torch.Tensor], kind: Format
) -> None:
    saved = checkpoint(tmp_path / "step-12.safetensors", spec, weights)
    exported = export_checkpoint(saved, tmp_path / "toy.safetensors", kind)
    facts = facts_of(spec, step=12, output_name="toy", layers_per_block=1)
    extra = hashes_of(spec, **ORIGIN)
    wanted = write_lora(kind, tmp_path / "wanted", weights, facts, dtype="bfloat16", extra=extra)
    assert exported.read_bytes() == wanted.read_bytes()
    with safe_open(exported, framework="pt") as opened:
        metadata = opened.metadata()
    assert metadata["giornata.base_sha256"] == "b" * 64
    assert metadata["giornata.dataset_sha256"] == "d" * 64
    assert len(metadata["giornata.spec_sha256"]) == 64


def test_export_of_ema_checkpoint_writes_averaged_weights(
    tmp_path: Path, spec: TrainSpec, weights: dict[str, torch.Tensor]
) -> None:
    averaged = {name: value * 3 for name, value in weights.items()}
    tensors = {f"adapter.{name}": value for name, value in weights.items()}
    tensors |= {f"ema.{name}": value for name, value in averaged.items()}
    told = {"step": 12, "spec": spec.model_dump(mode="json") | {"use_ema": True}, "fingerprint": {}}
    save_file(tensors, tmp_path / "step.safetensors", metadata={"giornata": json.dumps(told)})
    found = load_file(export_checkpoint(tmp_path / "step.safetensors", tmp_path / "a", "kohya", dtype="float32"))
    plain = checkpoint(tmp_path / "plain.safetensors", spec, averaged)
    wanted = load_file(export_checkpoint(plain, tmp_path / "b", "kohya", dtype="float32"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("kind", ["kohya", "diffusers"])
def test_the_layers_are_numbered_alike_when_the_base_model_is_gone(
    tmp_path: Path, spec: TrainSpec, weights: dict[str, torch.Tensor], kind: Format
) -> None:
    """The tiny model has one layer to a block where SDXL has two: kohya's numbers run through over all blocks."""
    here = checkpoint(tmp_path / "here.safetensors", spec, weights)
    gone = spec.model_dump(mode="json")["pretrained_model_name_or_path"] + "-gone"
    moved = checkpoint(tmp_path / "moved.safetensors", spec, weights, pretrained_model_name_or_path=gone)
    files = [export_checkpoint(each, tmp_path / f"{each.stem}.{kind}", kind) for each in (here, moved)]
    assert [sorted(load_file(file)) for file in files[1:]] == [sorted(load_file(files[0]))]


def test_export_of_lora_on_chosen_blocks_of_hub_model_numbers_blocks_as_sdxl(
    tmp_path: Path, spec: TrainSpec, tiny_base: BaseModel
) -> None:
    """`down_blocks.1.attentions.0` is there at any depth; of a model on a hub it is taken for SDXL's."""
    fields = {"lora_unet_blocks": ("down_blocks.1.attentions.0",)}
    with add_adapters(tiny_base, spec.model_copy(update=fields)) as adapters:
        weights = adapters.tensors()
    hub = {"pretrained_model_name_or_path": "owner/name", "lora_unet_blocks": ["down_blocks.1.attentions.0"]}
    file = export_checkpoint(checkpoint(tmp_path / "step", spec, weights, **hub), tmp_path / "out", "kohya")
    assert {name[: len("lora_unet_input_blocks_4_1")] for name in load_file(file)} == {"lora_unet_input_blocks_4_1"}


def test_the_command_line_takes_format_and_dtype(
    tmp_path: Path, spec: TrainSpec, weights: dict[str, torch.Tensor]
) -> None:
    saved = checkpoint(tmp_path / "step-12.safetensors", spec, weights)
    out = tmp_path / "out.safetensors"
    assert main([str(saved), str(out), "--format", "kohya", "--dtype", "float32", "--name", "mine"]) == 0
    with safe_open(out, framework="pt") as opened:
        assert opened.metadata()["ss_output_name"] == "mine"
        assert opened.metadata()["ss_steps"] == "12"
    down = {name: value for name, value in load_file(out).items() if name.endswith("lora_down.weight")}
    assert {value.dtype for value in down.values()} == {torch.float32}


def test_export_of_unreadable_or_foreign_checkpoint_is_refused_with_reason(
    tmp_path: Path, spec: TrainSpec, weights: dict[str, torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "garbage").write_bytes(b"not a file of tensors")
    save_file({"a": torch.ones(1)}, tmp_path / "other")
    checkpoint(tmp_path / "empty", spec, {})
    checkpoint(tmp_path / "future", spec, weights, rank=-1, wings=2)
    told = {
        "none": "cannot be read",
        "garbage": "cannot be read",
        "other": "no whole `giornata` header",
        "empty": "holds no adapter weights",
        "future": "rank, wings",
    }
    for name, message in told.items():
        with pytest.raises(InvalidInput, match=message) as error:
            export_checkpoint(tmp_path / name, tmp_path / "out", "kohya")
        assert error.value.faults[0].where == str(tmp_path / name)
    assert main([str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
