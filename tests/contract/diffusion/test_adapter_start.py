"""Adapters that begin with somebody's file: the same picture as with it, whatever its names, rank and dtype."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.contract.diffusion.test_adapters import trained
from tests.contract.diffusion.test_formats import facts
from tests.contract.diffusion.test_formats import outputs as exact_outputs
from tests.unit.diffusion.test_export import checkpoint
from tests.unit.diffusion.test_lora import outputs, same, spec_of

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.families import SD15
from giornata.diffusion.files.adapter_start import start_from
from giornata.diffusion.files.formats import Format, write_lora
from giornata.domain.errors import InvalidInput
from giornata.protocol.specs import TrainSpec

TARGETS = ["to_q", "to_out.0", "conv1"]
KOHYA = {"output_formats": ["kohya"]}
LOKR = {"adapter_type": "lokr", **KOHYA, "target_modules": TARGETS}
MADE: dict[str, Any] = {"rank": 2, "alpha": 3.0, "target_modules": TARGETS, "train_text_encoder": True}


def made(base: BaseModel, folder: Path, path: Path, kind: Format, dtype: Any = "float32", **fields: Any) -> Path:
    """A file that somebody trained."""
    spec = spec_of(folder, **fields)
    with add_adapters(base, spec) as adapters:
        return write_lora(kind, path, trained(adapters), facts(spec), dtype=dtype)


def begun(base: BaseModel, spec: TrainSpec, path: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What the models say to fixed inputs after that start, and the weights."""
    with add_adapters(base, spec) as adapters:
        start_from(path, base, spec, adapters)
        return exact_outputs(base.unet, base.text_encoders), adapters.tensors()


@pytest.mark.parametrize("kind", ["kohya", "diffusers"])
@pytest.mark.parametrize(
    "ours",
    [
        {"rank": 2, "alpha": 3.0},
        {"rank": 5, "alpha": 20.0},
        {"rank": 2, "rank_pattern": {"to_q": 7}, "use_rslora": True},
        {"rank": 3, "use_dora": True},
        {"rank": 2, "target_modules": [*TARGETS, "to_k"]},
    ],
    ids=["as it was", "more room", "patterns", "dora", "more layers"],
)
def test_the_picture_is_that_of_the_file(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path, kind: Format, ours: dict[str, Any]
) -> None:
    path = made(tiny_base, tiny_folder, tmp_path / "a", kind, **MADE, alpha_pattern={"to_q": 1.0})
    same_job = spec_of(tiny_folder, **MADE, alpha_pattern={"to_q": 1.0})
    with add_adapters(tiny_base, same_job) as adapters:
        trained(adapters)
        wanted = exact_outputs(tiny_base.unet, tiny_base.text_encoders)
    before = exact_outputs(tiny_base.unet, tiny_base.text_encoders)
    found, weights = begun(tiny_base, spec_of(tiny_folder, **{**MADE, **ours}), path)
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-5), name
        assert not torch.allclose(before[name], value, atol=1e-3), name
    assert {value.dtype for value in weights.values()} == {torch.float32}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_taken_as_it_is(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path, dtype: str
) -> None:
    path = made(tiny_base, tiny_folder, tmp_path / "a", "diffusers", dtype, **MADE)
    _, weights = begun(tiny_base, spec_of(tiny_folder, **MADE), path)
    assert all(torch.equal(weights[name], value.float()) for name, value in load_file(path).items())


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("kohya", {"use_dora": True, **MADE}),
        ("diffusers", {"use_dora": True, **MADE}),
        ("kohya", {**LOKR, "rank": 2, "alpha": 5.0}),
        ("kohya", {**LOKR, "rank": 64, "alpha": 5.0}),
        ("kohya", {**LOKR, "rank": 1, "decompose_both": True}),
    ],
    ids=["dora, kohya", "dora, diffusers", "lokr", "lokr of whole factors", "lokr of thin factors"],
)
def test_init_lora_of_dora_or_lokr_starts_with_same_outputs(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path, kind: Format, fields: dict[str, Any]
) -> None:
    path, spec = made(tiny_base, tiny_folder, tmp_path / "a", kind, **fields), spec_of(tiny_folder, **fields)
    with add_adapters(tiny_base, spec) as adapters:
        trained(adapters)
        wanted = exact_outputs(tiny_base.unet, tiny_base.text_encoders)
    found, _ = begun(tiny_base, spec, path)
    assert all(torch.allclose(found[name], value, rtol=1e-5, atol=1e-5) for name, value in wanted.items())


def test_a_checkpoint_goes_on_bit_for_bit(tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path) -> None:
    spec = spec_of(tiny_folder, **MADE, use_dora=True)
    with add_adapters(tiny_base, spec) as adapters:
        tensors = trained(adapters)
    path = checkpoint(tmp_path / "step-12", spec, tensors)
    _, weights = begun(tiny_base, spec, path)
    assert all(torch.equal(weights[name], value) for name, value in tensors.items())
    average = {f"ema.{name}": value / 2 for name, value in tensors.items()}
    told = {"giornata": json.dumps({"step": 12, "spec": spec.model_dump(mode="json")})}
    save_file(load_file(path) | average, tmp_path / "averaged", metadata=told)
    _, weights = begun(tiny_base, spec, tmp_path / "averaged")
    assert all(torch.equal(weights[name], value / 2) for name, value in tensors.items())


def test_names_after_diffusers_blocks_and_old_diffusers_names_are_understood(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path
) -> None:
    path = made(tiny_base, tiny_folder, tmp_path / "a", "diffusers", rank=2, target_modules=["to_q", "to_out.0"])
    content, spec = load_file(path), spec_of(tiny_folder, rank=2, target_modules=["to_q", "to_out.0"])
    _, wanted = begun(tiny_base, spec, path)
    kohya = {"lora_unet_" + _down_up(key).removeprefix("unet.") for key in content}
    assert all(".lora_" in key for key in kohya)
    underscores = {}
    for key, value in content.items():
        layer, part = _down_up(key).removeprefix("unet.").split(".lora_")
        underscores[f"lora_unet_{layer.replace('.', '_')}.lora_{part}"] = value
    old = {}
    for key, value in content.items():
        layer, part = key.split(".lora_")
        parent, _, name = layer.replace("to_out.0", "to_out").rpartition(".")
        old[f"{parent}.processor.{name}_lora.{'down' if part[0] == 'A' else 'up'}.weight"] = value
    for number, tensors in enumerate((underscores, old)):
        save_file(tensors, tmp_path / f"{number}.safetensors")
        _, found = begun(tiny_base, spec, tmp_path / f"{number}.safetensors")
        assert all(torch.equal(found[name], value) for name, value in wanted.items())


def _down_up(key: str) -> str:
    return key.replace("lora_A", "lora_down").replace("lora_B", "lora_up")


def faults_of(base: BaseModel, spec: TrainSpec, path: Path) -> str:
    before = outputs(base)
    with add_adapters(base, spec) as adapters:
        fresh = adapters.tensors()
        with pytest.raises(InvalidInput) as failure:
            start_from(path, base, spec, adapters)
        assert all(torch.equal(value, fresh[name]) for name, value in adapters.tensors().items())
    assert same(outputs(base), before)
    assert all(fault.where and fault.hint for fault in failure.value.faults)
    return " | ".join(map(str, failure.value.faults))


def test_all_that_does_not_fit_is_said_at_once(tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path) -> None:
    path = made(tiny_base, tiny_folder, tmp_path / "a", "diffusers", **{**MADE, "rank": 8, "use_dora": True})
    said = faults_of(tiny_base, spec_of(tiny_folder, rank=4, target_modules=["to_q"]), path)
    assert "adapts text_encoder." in said
    assert "which this job does not" in said
    assert "another kind of adapter" in said
    assert "lora_magnitude_vector" in said
    assert "higher rank than this job: 8" in said
    assert "set rank (or rank_pattern) to 8 or more" in said


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        ({**LOKR}, {"target_modules": TARGETS}, "another kind of adapter"),
        ({"target_modules": TARGETS}, {**LOKR}, "another kind of adapter"),
        ({**LOKR, "decompose_factor": 2}, {**LOKR, "decompose_factor": 4}, "made for other layers"),
        ({**LOKR, "rank": 1}, {**LOKR, "rank": 64}, "lacks"),
    ],
)
def test_kinds_and_factors_have_to_agree(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path, theirs: Any, ours: Any, message: str
) -> None:
    path = made(tiny_base, tiny_folder, tmp_path / "a", "kohya", **theirs)
    assert message in faults_of(tiny_base, spec_of(tiny_folder, **ours), path)


def test_init_lora_of_unusable_file_is_refused_with_its_reason(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path
) -> None:
    path = made(tiny_base, tiny_folder, tmp_path / "a", "kohya", **MADE)
    content, spec = load_file(path), spec_of(tiny_folder, **MADE)
    first = next(name for name in content if name.endswith("lora_up.weight"))
    (tmp_path / "garbage").write_bytes(b"not a file of tensors")
    save_file({"weight": torch.ones(1)}, tmp_path / "model")
    save_file(content | {"lora_te_text_model_q.lora_up.weight": torch.ones(1)}, tmp_path / "sd15")
    save_file(content | {first: content[first] * torch.nan}, tmp_path / "nan")
    save_file({name: value for name, value in content.items() if name != first}, tmp_path / "half")
    save_file(content | {first: torch.ones(3, 2)}, tmp_path / "shape")
    save_file(content | {first.replace("lora_up.weight", "alpha"): torch.tensor(-1.0)}, tmp_path / "alpha")
    told = {
        "none": "cannot be read",
        "garbage": "cannot be read",
        "model": "no adapter that is known here; its first key is weight",
        "sd15": "mean nothing for this base model: lora_te_text_model_q.lora_up.weight",
        "nan": "not finite",
        "half": "lacks",
        "shape": "made for other layers",
        "alpha": "not a positive number",
    }
    for name, message in told.items():
        assert message in faults_of(tiny_base, spec, tmp_path / name), name


@pytest.mark.parametrize("kind", ["kohya", "diffusers"])
def test_init_lora_of_sd15_starts_with_same_weights(
    tiny_sd15_base: BaseModel, tiny_sd15_folder: Path, tmp_path: Path, kind: Format
) -> None:
    spec = spec_of(tiny_sd15_folder, **MADE)
    with add_adapters(tiny_sd15_base, spec) as adapters:
        wanted = trained(adapters)
        path = write_lora(kind, tmp_path / "a", wanted, replace(facts(spec), family=SD15), dtype="float32")
    if kind == "kohya":
        assert any(key.startswith("lora_te_text_model_") for key in load_file(path))
    with add_adapters(tiny_sd15_base, spec) as adapters:
        start_from(path, tiny_sd15_base, spec, adapters)
        assert all(torch.allclose(value, wanted[name]) for name, value in adapters.tensors().items())


def test_a_checkpoint_of_another_family_is_refused(
    tiny_base: BaseModel, tiny_sd15_base: BaseModel, tiny_folder: Path, tmp_path: Path
) -> None:
    spec = spec_of(tiny_folder, rank=2)
    with add_adapters(tiny_base, spec) as adapters:
        path = checkpoint(tmp_path / "step-1.safetensors", spec, trained(adapters))
    with add_adapters(tiny_sd15_base, spec) as adapters, pytest.raises(InvalidInput) as failure:
        start_from(path, tiny_sd15_base, spec, adapters)
    assert "trained on Stable Diffusion XL" in str(failure.value.faults[0])


def test_new_tokens_are_refused_by_their_name(tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path) -> None:
    spec = spec_of(tiny_folder, rank=2)
    with add_adapters(tiny_base, spec) as adapters:
        weights = trained(adapters)
    rows = {"tokens.clip_l": torch.ones(2, 32), "tokens.clip_g": torch.ones(2, 32)}
    saved = checkpoint(tmp_path / "step-1.safetensors", spec, weights | rows)
    kohya = write_lora("kohya", tmp_path / "a", weights, facts(spec))
    bundled = load_file(kohya) | {"bundle_emb.TOK.clip_l": torch.ones(2, 32)}
    save_file(bundled, kohya)
    for path in (saved, kohya):
        assert "new tokens (train_text_encoder_ti)" in faults_of(tiny_base, spec, path)
