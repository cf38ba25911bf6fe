"""One file as a base: the weights that it holds, offline, or a refusal that says what is wrong with it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.fixtures.single_file import write_single_file
from tests.unit.diffusion.test_models import StubHub
from transformers import CLIPTextConfig

from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.families import FAMILIES, LAYOUTS, Family
from giornata.diffusion.families.vocabulary import clip_tokenizer
from giornata.diffusion.tiny.tiny_model import PIPELINES, tiny_pipeline
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec, model_key

FIELD = "spec.pretrained_model_name_or_path"


def pipeline_of(family: Family) -> Any:
    """diffusers tells SDXL's two text encoders apart by their widths, which are the same in the tiny model."""
    return tiny_pipeline(second_hidden=48) if family.pooled else PIPELINES[family.name]()


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """By family: the model in diffusers layout, and in one file. Beside the files lie `layouts`, without weights."""
    root = tmp_path_factory.mktemp("single")
    found = {}
    for family in FAMILIES:
        pipeline = pipeline_of(family)
        folder = root / "folders" / family.name
        pipeline.save_pretrained(folder)
        shutil.copytree(folder, root / "layouts" / family.name, ignore=shutil.ignore_patterns("*.safetensors"))
        found[family.name] = (folder, write_single_file(root / f"{family.name}.safetensors", pipeline))
    return found


@pytest.fixture(scope="module")
def layouts(given: dict[str, tuple[Path, Path]]) -> Path:
    return given["sdxl"][1].parent / "layouts"


def load(model: Path | str, layouts: Path, hub: Any = None, **fields: Any) -> BaseModel:
    spec = TrainSpec.model_validate({"model": str(model), "dataset": "ds_1", **fields})
    hub = hub or StubHub(AssertionError("nobody should ask the hub"))
    return load_base(spec, device="cpu", dtype=torch.float32, hub=hub, layouts=layouts)


def modules(base: BaseModel) -> dict[str, torch.nn.Module]:
    return {"unet": base.unet, "vae": base.vae, **dict(enumerate(base.text_encoders))}  # type: ignore[dict-item]


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# ---- what is loaded ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_single_file_gives_the_weights_of_its_folder(
    given: dict[str, tuple[Path, Path]], layouts: Path, family: Family
) -> None:
    folder, file = given[family.name]
    whole, single = load(folder, layouts), load(file, layouts)
    assert single.family is whole.family is family
    for name, module in modules(single).items():
        assert same(module, modules(whole)[name]), name
        assert not module.training
        assert not any(parameter.requires_grad for parameter in module.parameters())
    assert single.noise_scheduler.config.beta_schedule == "scaled_linear"
    assert [each.pad_token for each in single.tokenizers] == [each.pad_token for each in whole.tokenizers]
    assert single.vae.config.scaling_factor == whole.vae.config.scaling_factor


def test_the_vae_stays_fp32_and_may_be_another(
    given: dict[str, tuple[Path, Path]], layouts: Path, tmp_path: Path
) -> None:
    folder, file = given["sdxl"]
    spec = TrainSpec.model_validate({"model": str(file), "dataset": "ds_1"})
    base = load_base(spec, device="cpu", dtype=torch.bfloat16, layouts=layouts)
    assert (base.unet.dtype, base.vae.dtype) == (torch.bfloat16, torch.float32)
    fixed = Path(shutil.copytree(folder / "vae", tmp_path / "fixed"))
    config = json.loads((fixed / "config.json").read_text())
    (fixed / "config.json").write_text(json.dumps(config | {"force_upcast": False, "scaling_factor": 0.5}))
    bare = write_single_file(tmp_path / "bare.safetensors", pipeline_of(FAMILIES[0]), without="first_stage_model.")
    spec = TrainSpec.model_validate(
        {"model": str(bare), "dataset": "ds_1", "pretrained_vae_model_name_or_path": str(fixed)}
    )
    base = load_base(spec, device="cpu", dtype=torch.bfloat16, layouts=layouts)
    assert (base.vae.dtype, base.vae.config.scaling_factor) == (torch.bfloat16, 0.5)


def test_prediction_type_and_zero_snr_are_read_from_marks_in_single_file(
    given: dict[str, tuple[Path, Path]], layouts: Path, tmp_path: Path
) -> None:
    assert load(given["sdxl"][1], layouts).prediction_type == "epsilon"
    for marks, zero_snr in (({"v_pred"}, False), ({"v_pred", "ztsnr"}, True)):
        extra = {mark: torch.zeros(1) for mark in marks}
        file = write_single_file(tmp_path / "v.safetensors", pipeline_of(FAMILIES[0]), extra=extra)
        base = load(file, layouts)
        assert base.prediction_type == "v_prediction"
        assert base.noise_scheduler.config.rescale_betas_zero_snr is zero_snr


def test_a_file_on_the_hub_is_fetched(given: dict[str, tuple[Path, Path]], layouts: Path) -> None:
    file = given["sd15"][1]
    for name, revision, asked in (
        ("owner/name/sub/file.safetensors", "r1", ("owner/name", "sub/file.safetensors", "r1")),
        (
            "https://huggingface.co/owner/name/resolve/r2/f.safetensors?download=true",
            None,
            ("owner/name", "f.safetensors", "r2"),
        ),
        ("https://huggingface.co/owner/name/blob/main/f.safetensors", None, ("owner/name", "f.safetensors", "main")),
    ):
        hub = StubHub(file)
        assert load(name, layouts, hub, revision=revision).family.name == "sd15"
        assert hub.asked == [asked]


# ---- its content --------------------------------------------------------------------------------------------------


def test_the_content_is_what_the_spec_says_or_refused(given: dict[str, tuple[Path, Path]], layouts: Path) -> None:
    file = given["sd15"][1]
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    base = load(file, layouts, pretrained_model_sha256=sha256)
    assert base.key.endswith(sha256)
    spec = {"pretrained_model_name_or_path": str(file)}
    assert model_key("train", spec | {"pretrained_model_sha256": sha256}) != model_key("train", spec)
    with pytest.raises(WorkloadFailed) as failure:
        load(file, layouts, pretrained_model_sha256="0" * 64)
    assert failure.value.reason is Reason.BAD_SPEC
    assert failure.value.faults[0].where == "spec.pretrained_model_sha256"
    assert sha256 in failure.value.faults[0].message


# ---- what is refused -----------------------------------------------------------------------------------------------


def refused(file: Path, layouts: Path, **fields: Any) -> WorkloadFailed:
    with pytest.raises(WorkloadFailed) as failure:
        load(file, layouts, **fields)
    return failure.value


def changed(file: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, target)
    return target


def test_faults_of_single_file_model_are_all_reported_at_once(
    given: dict[str, tuple[Path, Path]], layouts: Path, tmp_path: Path
) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            if name.startswith(("first_stage_model", "conditioner.embedders.1")):
                del tensors[name]
        tensors["model.diffusion_model.input_blocks.0.0.weight"] = torch.zeros(32, 9, 3, 3)

    file = changed(given["sdxl"][1], tmp_path / "file.safetensors", spoil)
    failure = refused(file, layouts, pretrained_model_sha256="0" * 64)
    assert failure.reason is Reason.BAD_SPEC
    assert [fault.where for fault in failure.faults] == [FIELD, FIELD, "spec.pretrained_model_sha256"]
    assert "holds no VAE, no second text encoder of Stable Diffusion XL" in failure.faults[0].message
    assert "takes 9 channels" in failure.faults[1].message
    assert str(tmp_path) not in failure.faults[0].message


def test_a_lora_is_no_base_model(tmp_path: Path, layouts: Path) -> None:
    save_file({"lora_unet_x.lora_down.weight": torch.zeros(1)}, tmp_path / "lora.safetensors")
    failure = refused(tmp_path / "lora.safetensors", layouts)
    assert failure.reason is Reason.BAD_SPEC
    assert "holds no UNet" in failure.message


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("model.diffusion_model.middle_block.1.norm.weight", "it lacks some"),
        ("first_stage_model.decoder.norm_out.bias", "it lacks some"),
        (
            "cond_stage_model.transformer.text_model.encoder.layers.1.mlp.fc1.bias",
            "it lacks 1 of the model's weights, first text_encoder.encoder.layers.1.mlp.fc1.bias",
        ),
    ],
)
def test_a_missing_weight_is_noticed(
    given: dict[str, tuple[Path, Path]], layouts: Path, tmp_path: Path, key: str, told: str
) -> None:
    file = changed(given["sd15"][1], tmp_path / "file.safetensors", lambda tensors: tensors.pop(key))
    failure = refused(file, layouts)
    assert failure.reason is Reason.BAD_SPEC
    assert told in failure.message


def test_weights_of_another_size_are_refused(given: dict[str, tuple[Path, Path]]) -> None:
    """The shipped configs are those of the published models."""
    failure = refused(given["sd15"][1], LAYOUTS)
    assert failure.reason is Reason.BAD_SPEC


def test_a_file_cut_short_is_this_copys_fault(
    given: dict[str, tuple[Path, Path]], layouts: Path, tmp_path: Path
) -> None:
    file = tmp_path / "cut.safetensors"
    file.write_bytes(given["sd15"][1].read_bytes()[:-100])
    assert refused(file, layouts).reason is Reason.NODE_DOWNLOAD
    assert refused(tmp_path / "none.safetensors", layouts).reason is Reason.BAD_SPEC


# ---- what is shipped -----------------------------------------------------------------------------------------------

PUBLISHED_PARAMETERS = {  # of the published models
    "sdxl": {"unet": 2_567_463_684, "vae": 83_653_863, "text_encoder": 123_060_480, "text_encoder_2": 694_659_840},
    "sd15": {"unet": 859_520_964, "vae": 83_653_863, "text_encoder": 123_060_480},
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_shipped_configs_are_those_of_the_published_models(family: Family) -> None:
    layout = LAYOUTS / family.name
    with torch.device("meta"):
        found = {
            "unet": UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(layout / "unet")),
            "vae": AutoencoderKL.from_config(AutoencoderKL.load_config(layout / "vae")),
        }
        for kind, name in zip(family.encoder_classes(), family.encoder_names, strict=True):
            found[name] = kind(CLIPTextConfig.from_pretrained(layout / name))
    counts = {name: sum(parameter.numel() for parameter in each.parameters()) for name, each in found.items()}
    assert counts == PUBLISHED_PARAMETERS[family.name]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a photo of a cat", [320, 1125, 539, 320, 2368]),
        ("Hello world!", [3306, 1002, 256]),
        ("A  Diagram", [320, 22697]),
    ],
)
def test_the_shipped_vocabulary_is_clips(text: str, tokens: list[int]) -> None:
    tokenizer = clip_tokenizer(pad_token="<|endoftext|>")
    assert tokenizer(text).input_ids == [49406, *tokens, 49407]
    assert len(tokenizer) == 49408


def test_the_second_of_sdxls_tokenizers_is_padded_with_zeros() -> None:
    tokens = clip_tokenizer(pad_token="!")("a", padding="max_length", max_length=5).input_ids
    assert tokens == [49406, 320, 49407, 0, 0]


def test_the_files_of_the_test_are_in_the_authors_layout(given: dict[str, tuple[Path, Path]]) -> None:
    for family in FAMILIES:
        with safe_open(given[family.name][1], framework="pt") as opened:
            assert set(family.single_file_keys.values()) <= set(opened.keys())
