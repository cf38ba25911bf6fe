"""The files that users load: whole under plain diffusers, the same bytes every time, honest about themselves."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionXLPipeline, UNet2DConditionModel
from diffusers.utils import convert_state_dict_to_diffusers
from safetensors import safe_open
from safetensors.torch import load, load_file

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.families.sdxl import kohya_name
from giornata.diffusion.files.formats import (
    FILE_NAMES,
    Format,
    lost_tensors,
    write_diffusers,
    write_kohya,
    write_lora,
)
from giornata.diffusion.files.lora_facts import LoraFacts, facts_of
from giornata.diffusion.files.lora_rewrite import facts_shown
from giornata.diffusion.tensor_file import safetensors_bytes
from giornata.domain.errors import WorkloadFailed
from giornata.domain.generation.model_header import read_header
from giornata.domain.generation.model_kinds import ModelFamily, ModelKind, facts_of_model
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec

ATTENTION = ("to_k", "to_q", "to_v", "to_out.0")
WIDE = (*ATTENTION, "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out")
CONVOLUTIONS = ("conv1", "conv2", "conv_shortcut", "conv_in", "conv_out", "conv")
EMBEDDINGS = ("time_emb_proj", "linear_1", "linear_2")
# The fp32 weights are the same to the bit; both sides are computed in fp64, so only the order of sums may differ.
TOLERANCE = 1e-9


def spec_of(**fields: Any) -> TrainSpec:
    defaults = {"model": "owner/name", "dataset": "ds_1", "seed": 5, "rank": 4, "resolution": 64}
    return TrainSpec.model_validate({**defaults, "instance_prompt": "a photo of sks toy", **fields})


def facts(spec: TrainSpec, **fields: Any) -> LoraFacts:
    return facts_of(spec, **{"step": 7, "captions": ["Toy, red", "toy"], "layers_per_block": 1, **fields})


def noisy(adapters: Any) -> dict[str, torch.Tensor]:
    """Weights as after a training: no zeros left."""
    draw = torch.Generator().manual_seed(0)
    tensors = adapters.tensors()
    return {name: tensors[name] + 0.1 * torch.randn(tensors[name].shape, generator=draw) for name in tensors}


def outputs(unet: Any, text_encoders: Any) -> dict[str, torch.Tensor]:
    """What the models say to fixed inputs, in fp64 on copies."""
    unet, *text_encoders = (copy.deepcopy(model).double() for model in (unet, *text_encoders))
    draw = torch.Generator().manual_seed(0)
    ids = {"text_embeds": torch.ones((1, 32)).double(), "time_ids": torch.full((1, 6), 64.0).double()}
    latents_BCHW = torch.randn((1, 4, 8, 8), generator=draw).double()
    text_BLD = torch.randn((1, 77, 64), generator=draw).double()
    tokens_BL = torch.arange(77)[None]
    with torch.no_grad():
        return {
            "unet": unet(latents_BCHW, 300, text_BLD, added_cond_kwargs=ids).sample,
            "text_encoder": text_encoders[0](tokens_BL, output_hidden_states=True).hidden_states[-2],
            "text_encoder_2": text_encoders[1](tokens_BL, output_hidden_states=True).hidden_states[-2],
            "pooled": text_encoders[1](tokens_BL)[0],
        }


@pytest.fixture(scope="module")
def trained(tiny_base: BaseModel) -> tuple[TrainSpec, dict[str, torch.Tensor]]:
    spec = spec_of(train_text_encoder=True, alpha=2.5, target_modules=WIDE)
    with add_adapters(tiny_base, spec) as adapters:
        return spec, noisy(adapters)


# ---- the trip to a user's diffusers and back ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(FILE_NAMES))
@pytest.mark.parametrize(
    ("targets", "alpha", "text"),
    [
        (ATTENTION, None, False),
        (ATTENTION, 1.5, True),
        (WIDE, None, False),
        (WIDE, 9.0, True),
        ((*WIDE, *CONVOLUTIONS, *EMBEDDINGS), 2.5, True),
        (("conv_in", "linear_1"), None, False),
    ],
    ids=["attention", "attention+text", "wide", "wide+text", "all+text", "two"],
)
def test_plain_diffusers_loads_exactly_what_was_trained(
    tiny_base: BaseModel,
    tiny_folder: Path,
    tmp_path: Path,
    kind: Format,
    targets: tuple[str, ...],
    alpha: float | None,
    text: bool,
) -> None:
    spec = spec_of(target_modules=targets, alpha=alpha, train_text_encoder=text)
    before = outputs(tiny_base.unet, tiny_base.text_encoders)
    with add_adapters(tiny_base, spec) as adapters:
        adapters.load(noisy(adapters))
        ours = outputs(tiny_base.unet, tiny_base.text_encoders)
        path = write_lora(kind, tmp_path / FILE_NAMES[kind], adapters.tensors(), facts(spec), dtype="float32")
    pipeline = StableDiffusionXLPipeline.from_pretrained(tiny_folder)
    pipeline.load_lora_weights(str(path))
    theirs = outputs(pipeline.unet, (pipeline.text_encoder, pipeline.text_encoder_2))
    for name, value in ours.items():
        assert torch.allclose(theirs[name], value, atol=TOLERANCE, rtol=TOLERANCE), name
        changed = not torch.allclose(before[name], value, atol=1e-3)
        assert changed is (name == "unet" or text), name


@pytest.mark.parametrize("kind", list(FILE_NAMES))
def test_header_of_a_written_file_tells_that_it_is_an_sdxl_lora(
    trained: tuple[TrainSpec, dict[str, torch.Tensor]], tmp_path: Path, kind: Format
) -> None:
    spec, tensors = trained
    content = write_lora(kind, tmp_path / "file.safetensors", tensors, facts(spec)).read_bytes()
    told = facts_of_model(read_header(content, where="file"), where="file")
    assert (told.kind, told.family) == (ModelKind.LORA, ModelFamily.SDXL)


@pytest.mark.parametrize("kind", list(FILE_NAMES))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_tensor_arrives_in_the_dtype_asked_for(
    trained: tuple[TrainSpec, dict[str, torch.Tensor]], tmp_path: Path, kind: Format, dtype: Any
) -> None:
    spec, tensors = trained
    written = load_file(write_lora(kind, tmp_path / "file.safetensors", tensors, facts(spec), dtype=dtype))
    weights = {name: value for name, value in written.items() if not name.endswith(".alpha")}
    assert len(weights) == len(tensors)
    assert {value.dtype for value in weights.values()} == {getattr(torch, dtype)}
    alphas = [value for name, value in written.items() if name.endswith(".alpha")]
    assert len(alphas) == (len(tensors) // 2 if kind == "kohya" else 0)
    assert all(alpha.item() == 2.5 and alpha.dtype == torch.float32 for alpha in alphas)
    if kind == "diffusers":
        assert all(torch.equal(written[name], value.to(getattr(torch, dtype))) for name, value in tensors.items())


def test_the_way_of_the_scripts_is_recognized_as_lossy(trained: tuple[TrainSpec, dict[str, torch.Tensor]]) -> None:
    """The very conversion that drops attention layers when others are adapted too."""
    _, tensors = trained
    assert lost_tensors(tensors, tensors, layers_per_block=1) == []
    unet = {name.removeprefix("unet."): value for name, value in tensors.items() if name.startswith("unet.")}
    scripted = {f"unet.{name}": value for name, value in convert_state_dict_to_diffusers(unet).items()}
    lost = lost_tensors(scripted, [f"unet.{name}" for name in unet], layers_per_block=1)
    assert any(".attn1.to_q." in name for name in lost)


def test_a_missing_or_surplus_tensor_is_noticed(trained: tuple[TrainSpec, dict[str, torch.Tensor]]) -> None:
    _, tensors = trained
    first, *rest = tensors
    assert lost_tensors({name: tensors[name] for name in rest}, tensors, layers_per_block=1) == [first]
    assert lost_tensors(tensors, rest, layers_per_block=1) == [first]


def test_a_file_that_would_load_in_part_is_not_written(tmp_path: Path) -> None:
    """In diffusers' reading of kohya's names, a layer under a made-up name ends up elsewhere."""
    spec = spec_of()
    layer = "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.odd_name"
    tensors = {f"{layer}.lora_A.weight": torch.ones(4, 8), f"{layer}.lora_B.weight": torch.ones(8, 4)}
    with pytest.raises(WorkloadFailed, match="would lose") as failure:
        write_kohya(tmp_path / "file.safetensors", tensors, facts(spec))
    assert failure.value.reason is Reason.CRASHED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [1e6, float("nan")])
def test_weights_that_do_not_fit_the_dtype_are_refused(
    trained: tuple[TrainSpec, dict[str, torch.Tensor]], tmp_path: Path, value: float
) -> None:
    spec, tensors = trained
    name = next(iter(tensors))
    spoiled = tensors | {name: torch.full_like(tensors[name], value)}
    with pytest.raises(WorkloadFailed) as failure:
        write_diffusers(tmp_path / "file.safetensors", spoiled, facts(spec), dtype="float16")
    assert failure.value.reason is Reason.BAD_SPEC
    assert failure.value.faults[0].where == "spec.output_dtype"
    assert name in failure.value.faults[0].message


# ---- bytes and metadata ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(FILE_NAMES))
def test_the_same_weights_give_the_same_bytes(
    trained: tuple[TrainSpec, dict[str, torch.Tensor]], tmp_path: Path, kind: Format
) -> None:
    """In any order of tensors and metadata. The library alone writes several metadata keys in no fixed order."""
    spec, tensors = trained
    shuffled = dict(reversed(tensors.items()))
    extras = {f"giornata.{number}": "x" for number in range(9)}
    contents = set()
    for number in range(4):
        given, extra = (tensors, extras) if number % 2 else (shuffled, dict(reversed(extras.items())))
        contents.add(write_lora(kind, tmp_path / f"{number}", given, facts(spec), extra=extra).read_bytes())
    (content,) = contents
    header_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_bytes])
    assert header_bytes % 8 == 0
    assert list(header["__metadata__"]) == sorted(header["__metadata__"])
    assert header["__metadata__"]["giornata.3"] == "x"


def test_the_canonical_file_holds_what_the_library_would_write() -> None:
    tensors = {"b": torch.arange(3, dtype=torch.float16), "a": torch.ones((2, 0)), "c.ö": torch.tensor(2.5)}
    read = load(safetensors_bytes(tensors, {"ü": "ä"}))
    assert all(torch.equal(read[name], value) and read[name].dtype == value.dtype for name, value in tensors.items())


def test_kohyas_metadata_says_what_tools_look_for(
    trained: tuple[TrainSpec, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    spec, tensors = trained
    local = spec.model_copy(update={"pretrained_model_name_or_path": "/srv/models/my-sdxl"})
    path = write_kohya(tmp_path / "file.safetensors", tensors, facts(local, output_name="toy"))
    with safe_open(path, framework="pt") as opened:
        metadata = opened.metadata()
    assert metadata["ss_base_model_version"] == "sdxl_base_v1-0"
    assert metadata["ss_network_module"] == "networks.lora"
    assert (metadata["ss_network_dim"], metadata["ss_network_alpha"], metadata["ss_network_args"]) == (
        "4",
        "2.5",
        "{}",
    )
    assert json.loads(metadata["ss_tag_frequency"]) == {"toy": {"red": 1, "toy": 2}}
    assert (metadata["ss_output_name"], metadata["ss_steps"]) == ("toy", "7")
    assert metadata["modelspec.architecture"] == "stable-diffusion-xl-v1-base/lora"
    assert metadata["modelspec.resolution"] == "64x64"
    assert metadata["modelspec.trigger_phrase"] == "a photo of sks toy"
    assert metadata["modelspec.hash_sha256"] == "0x" + metadata["sshs_model_hash"]
    assert metadata["ss_sd_model_name"] == "my-sdxl"
    assert not any("/srv" in value or str(tmp_path) in value for value in metadata.values())
    assert not any("date" in key or "time" in key for key in metadata)
    assert "ss_new_sd_model_hash" not in metadata


def test_a_file_names_the_base_by_its_hashes(
    trained: tuple[TrainSpec, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    """kohya's field is the sha256 of the base's file, ours that of its weights; `lora inspect` shows both."""
    spec, tensors = trained
    single = spec.model_copy(update={"pretrained_model_sha256": "f" * 64})
    path = write_kohya(
        tmp_path / "file.safetensors", tensors, facts(single), extra={"giornata.base_sha256": "b" * 64}
    )
    with safe_open(path, framework="pt") as opened:
        metadata = opened.metadata()
    assert metadata["ss_new_sd_model_hash"] == "f" * 64
    shown = facts_shown(metadata)
    assert (shown["base hash"], shown["base file"]) == ("b" * 64, "f" * 64)


def test_alpha_survives_in_diffusers_metadata(
    trained: tuple[TrainSpec, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    spec, tensors = trained
    with safe_open(write_diffusers(tmp_path / "f.safetensors", tensors, facts(spec)), framework="pt") as opened:
        config = json.loads(opened.metadata()["lora_adapter_metadata"])
    assert {config[f"{prefix}.lora_alpha"] for prefix in ("unet", "text_encoder", "text_encoder_2")} == {2.5}
    assert config["unet.target_modules"] == sorted(WIDE)


# ---- kohya's names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (
            "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q",
            "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q",
        ),
        (
            "unet.down_blocks.2.attentions.1.transformer_blocks.9.ff.net.0.proj",
            "lora_unet_input_blocks_8_1_transformer_blocks_9_ff_net_0_proj",
        ),
        (
            "unet.mid_block.attentions.0.transformer_blocks.9.attn2.to_out.0",
            "lora_unet_middle_block_1_transformer_blocks_9_attn2_to_out_0",
        ),
        ("unet.mid_block.resnets.1.conv1", "lora_unet_middle_block_2_in_layers_2"),
        ("unet.up_blocks.1.attentions.2.proj_out", "lora_unet_output_blocks_5_1_proj_out"),
        ("unet.up_blocks.0.upsamplers.0.conv", "lora_unet_output_blocks_2_2_conv"),
        ("unet.down_blocks.0.downsamplers.0.conv", "lora_unet_input_blocks_3_0_op"),
        ("unet.conv_in", "lora_unet_input_blocks_0_0"),
        (
            "text_encoder.text_model.encoder.layers.11.self_attn.q_proj",
            "lora_te1_text_model_encoder_layers_11_self_attn_q_proj",
        ),
        (
            "text_encoder_2.text_model.encoder.layers.31.self_attn.out_proj",
            "lora_te2_text_model_encoder_layers_31_self_attn_out_proj",
        ),
    ],
)
def test_names_are_those_of_published_sdxl_loras(layer: str, name: str) -> None:
    assert kohya_name(layer) == name


def test_a_layer_that_sdxl_does_not_have_has_no_name() -> None:
    with pytest.raises(KeyError, match="surprise"):
        kohya_name("unet.surprise.conv")


def test_every_layer_of_the_full_sized_unet_finds_its_way_back() -> None:
    """Names only, on SDXL's own configuration; no weights are made."""
    with torch.device("meta"):
        unet = UNet2DConditionModel(
            sample_size=128,
            block_out_channels=(320, 640, 1280),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            transformer_layers_per_block=(1, 2, 10),
            attention_head_dim=(5, 10, 20),
            cross_attention_dim=2048,
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=2816,
        )
    kinds = (torch.nn.Linear, torch.nn.Conv2d)
    layers = [f"unet.{name}" for name, module in unet.named_modules() if isinstance(module, kinds)]
    assert len(layers) > 700
    dot = torch.zeros(1, 1)
    content = {f"{kohya_name(layer)}.{part}.weight": dot for layer in layers for part in ("lora_down", "lora_up")}
    names = [f"{layer}.{part}.weight" for layer in layers for part in ("lora_A", "lora_B")]
    assert len(content) == len(names)
    assert lost_tensors(content, names, layers_per_block=2) == []
