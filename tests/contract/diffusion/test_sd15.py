"""Stable Diffusion 1.5 through the same code: conditioned, named, exported and refused as that family is."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline, UNet2DConditionModel
from safetensors import safe_open
from safetensors.torch import save_file

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.adapter.tokens import add_tokens, taught
from giornata.diffusion.base.models import BaseModel, check_model_folder, load_base
from giornata.diffusion.encode.captions import EmbeddingCache, encode
from giornata.diffusion.families import FAMILIES, SD15, SDXL, family_named
from giornata.diffusion.families.sd15 import kohya_name
from giornata.diffusion.files.export import export_checkpoint
from giornata.diffusion.files.formats import FILE_NAMES, Format, lost_tensors, write_kohya, write_lora
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.files.model_card import SPEC_KEY, recipe_sha256
from giornata.diffusion.tiny.tiny_model import build_tiny_model
from giornata.domain.errors import InvalidInput, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec

ATTENTION = ("to_k", "to_q", "to_v", "to_out.0")
EVERYTHING = (*ATTENTION, "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out", "conv1", "conv2", "conv_shortcut")
EVERYTHING += ("conv_in", "conv_out", "conv", "time_emb_proj", "linear_1", "linear_2")
# The fp32 weights are the same to the bit; both sides are computed in fp64, so only the order of sums may differ.
TOLERANCE = 1e-9
CAPTIONS = ["a photo of sks toy", 'it says "hello", ünï', ""]


def spec_of(model: Path, **fields: Any) -> TrainSpec:
    defaults = {"model": str(model), "dataset": "ds_1", "seed": 5, "rank": 4, "resolution": 64}
    return TrainSpec.model_validate({**defaults, "instance_prompt": "a photo of sks toy", **fields})


def noisy(adapters: Any) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    tensors = adapters.tensors()
    return {name: tensors[name] + 0.1 * torch.randn(tensors[name].shape, generator=draw) for name in tensors}


def outputs(unet: Any, encoder: Any) -> dict[str, torch.Tensor]:
    """What the models say to fixed inputs, in fp64 on copies."""
    unet, encoder = copy.deepcopy(unet).double(), copy.deepcopy(encoder).double()
    draw = torch.Generator().manual_seed(0)
    latents_BCHW = torch.randn((1, 4, 8, 8), generator=draw).double()
    text_BLD = torch.randn((1, 77, 32), generator=draw).double()
    with torch.no_grad():
        return {
            "unet": unet(latents_BCHW, 300, text_BLD).sample,
            "text_encoder": encoder(torch.arange(77)[None]).last_hidden_state,
        }


# ---- conditioning ------------------------------------------------------------------------------------------------


def test_captions_are_encoded_as_the_pipeline_does(tiny_sd15_base: BaseModel, tiny_sd15_folder: Path) -> None:
    base = tiny_sd15_base
    pipeline = SD15.load_pipeline(tiny_sd15_folder, dtype=torch.float32)
    wanted_BLD, _ = pipeline.encode_prompt(CAPTIONS, "cpu", 1, do_classifier_free_guidance=False)
    with torch.no_grad():
        found = encode(base.tokenizers, base.text_encoders, CAPTIONS, family=base.family)
    assert torch.equal(found.prompt_BLD, wanted_BLD)
    assert found.pooled_BP is None
    cache = EmbeddingCache(
        tokenizers=base.tokenizers, text_encoders=base.text_encoders, encoder_key="k", family=base.family
    )
    cache.fill(CAPTIONS)
    cached = cache.batch(CAPTIONS)
    assert cached.pooled_BP is None
    assert torch.allclose(cached.prompt_BLD, wanted_BLD, atol=1e-5)


def test_the_base_knows_its_family(tiny_sd15_base: BaseModel, tiny_base: BaseModel) -> None:
    assert (tiny_sd15_base.family, tiny_base.family) == (SD15, SDXL)
    assert len(tiny_sd15_base.text_encoders) == len(tiny_sd15_base.tokenizers) == 1
    assert tiny_sd15_base.noise_scheduler.config.beta_schedule == "scaled_linear"
    assert [family_named(family.name) for family in FAMILIES] == list(FAMILIES)


# ---- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(FILE_NAMES))
@pytest.mark.parametrize(
    ("targets", "alpha", "text"),
    [
        (ATTENTION, None, False),
        (ATTENTION, 1.5, True),
        (EVERYTHING, 2.5, True),
        (("conv_in", "linear_1"), None, False),
    ],
    ids=["attention", "attention+text", "all+text", "two"],
)
def test_plain_diffusers_loads_exactly_what_was_trained(
    tiny_sd15_base: BaseModel,
    tiny_sd15_folder: Path,
    tmp_path: Path,
    kind: Format,
    targets: tuple[str, ...],
    alpha: float | None,
    text: bool,
) -> None:
    base = tiny_sd15_base
    spec = spec_of(tiny_sd15_folder, target_modules=targets, alpha=alpha, train_text_encoder=text)
    before = outputs(base.unet, base.text_encoders[0])
    with add_adapters(base, spec) as adapters:
        adapters.load(noisy(adapters))
        ours = outputs(base.unet, base.text_encoders[0])
        facts = facts_of(spec, step=7, layers_per_block=1, family=base.family)
        path = write_lora(kind, tmp_path / FILE_NAMES[kind], adapters.tensors(), facts, dtype="float32")
    pipeline = StableDiffusionPipeline.from_pretrained(tiny_sd15_folder, safety_checker=None)
    pipeline.load_lora_weights(str(path))
    theirs = outputs(pipeline.unet, pipeline.text_encoder)
    for name, value in ours.items():
        assert torch.allclose(theirs[name], value, atol=TOLERANCE, rtol=TOLERANCE), name
        changed = not torch.allclose(before[name], value, atol=1e-3)
        assert changed is (name == "unet" or text), name


def test_the_metadata_says_which_family_it_is(
    tiny_sd15_base: BaseModel, tiny_sd15_folder: Path, tmp_path: Path
) -> None:
    spec = spec_of(tiny_sd15_folder, train_text_encoder=True)
    with add_adapters(tiny_sd15_base, spec) as adapters:
        facts = facts_of(spec, step=7, layers_per_block=1, family=SD15)
        path = write_kohya(tmp_path / "file.safetensors", noisy(adapters), facts)
    with safe_open(path, framework="pt") as opened:
        metadata, names = opened.metadata(), list(opened.keys())
    assert metadata["ss_base_model_version"] == "sd_v1"
    assert metadata["modelspec.architecture"] == "stable-diffusion-v1/lora"
    assert {name.split("_down_")[0].split("_text_")[0] for name in names if "_te_" in name} == {"lora_te"}
    assert any(name.startswith("lora_unet_down_blocks_1_attentions_0_") for name in names)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (
            "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
            "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
        ),
        (
            "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_out.0",
            "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_out_0",
        ),
        (
            "text_encoder.text_model.encoder.layers.11.mlp.fc1",
            "lora_te_text_model_encoder_layers_11_mlp_fc1",
        ),
    ],
)
def test_names_are_those_of_published_loras(layer: str, name: str) -> None:
    assert kohya_name(layer) == name


def test_every_layer_of_the_full_sized_unet_finds_its_way_back() -> None:
    """Names only, on the published configuration; no weights are made."""
    with torch.device("meta"):
        unet = UNet2DConditionModel(sample_size=64, attention_head_dim=8, cross_attention_dim=768)
    kinds = (torch.nn.Linear, torch.nn.Conv2d)
    layers = [f"unet.{name}" for name, module in unet.named_modules() if isinstance(module, kinds)]
    assert len(layers) > 250
    dot = torch.zeros(1, 1)
    content = {f"{kohya_name(layer)}.{part}.weight": dot for layer in layers for part in ("lora_down", "lora_up")}
    names = [f"{layer}.{part}.weight" for layer in layers for part in ("lora_A", "lora_B")]
    assert len(content) == len(names)
    assert lost_tensors(content, names, layers_per_block=2, family=SD15) == []


@pytest.mark.parametrize("kind", list(FILE_NAMES))
def test_a_checkpoint_is_exported_as_its_family(
    tiny_sd15_base: BaseModel, tiny_sd15_folder: Path, tmp_path: Path, kind: Format
) -> None:
    """From the checkpoint alone: the spec does not say which kind of model a hub id is."""
    spec = spec_of(Path("owner/name"), train_text_encoder=True)
    with add_adapters(tiny_sd15_base, spec) as adapters:
        weights = noisy(adapters)
    header: dict[str, Any] = {"step": 12, "spec": spec.model_dump(mode="json"), "fingerprint": {}, "family": "sd15"}
    saved = tmp_path / "step.safetensors"
    save_file({f"adapter.{name}": value for name, value in weights.items()}, saved, {"giornata": json.dumps(header)})
    facts = facts_of(spec, step=12, output_name="toy", layers_per_block=1, family=SD15)
    wanted = write_lora(kind, tmp_path / "wanted", weights, facts, extra={SPEC_KEY: recipe_sha256(spec)})
    assert export_checkpoint(saved, tmp_path / "toy.safetensors", kind).read_bytes() == wanted.read_bytes()
    header["family"] = "sd99"
    save_file({"adapter.a": torch.ones(1)}, saved, {"giornata": json.dumps(header)})
    with pytest.raises(InvalidInput, match="sd99"):
        export_checkpoint(saved, tmp_path / "none", kind)


# ---- the tiny model and what is refused ---------------------------------------------------------------------------


def test_the_tiny_model_is_drawn_by_plain_diffusers_and_listens(tiny_sd15_folder: Path) -> None:
    pipeline = StableDiffusionPipeline.from_pretrained(tiny_sd15_folder, safety_checker=None)
    pipeline.set_progress_bar_config(disable=True)

    def draw(prompt: str) -> Any:
        generator = torch.Generator().manual_seed(0)
        return pipeline(prompt, num_inference_steps=4, height=64, width=64, output_type="pt", generator=generator)[0]

    red, blue = draw("a red toy"), draw("a blue cat")
    assert torch.isfinite(red).all()
    assert red.std() > 0.02
    assert (red - blue).abs().max() > 0.01


def test_build_of_tiny_sdxl_refuses_folder_with_sd15_model(tiny_sd15_folder: Path) -> None:
    with pytest.raises(InvalidInput, match="not a complete Stable Diffusion XL model"):
        build_tiny_model(tiny_sd15_folder)


@pytest.fixture
def model(tiny_sd15_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_sd15_folder, tmp_path / "model"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(folder: Path) -> list[str]:
    with pytest.raises(WorkloadFailed) as failure:
        load_base(spec_of(folder), device="cpu", dtype=torch.float32)
    assert failure.value.reason is Reason.BAD_SPEC
    assert check_model_folder(folder) == list(failure.value.faults)
    return [fault.message for fault in failure.value.faults]


def test_a_published_config_does_not_name_what_it_lacks(model: Path) -> None:
    config = model / "unet" / "config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps({k: v for k, v in fields.items() if k not in SD15.unet_settings or "channels" in k}))
    assert check_model_folder(model) == []


def test_stable_diffusion_2_and_inpainting_models_are_refused(model: Path) -> None:
    edit(model / "unet" / "config.json", use_linear_projection=True, in_channels=9)
    told = refused(model)
    assert told == [
        "the UNet's use_linear_projection is True, where Stable Diffusion 1.5 has False",
        "the UNet's in_channels is 9, where Stable Diffusion 1.5 has 4",
    ]


def test_all_faults_are_told_at_once(model: Path) -> None:
    edit(model / "model_index.json", _class_name="PixArtAlphaPipeline", text_encoder=["transformers", "T5Encoder"])
    edit(model / "unet" / "config.json", addition_embed_type="text_time")
    shutil.rmtree(model / "tokenizer")
    (model / "vae" / "diffusion_pytorch_model.safetensors").rename(model / "vae" / "diffusion_pytorch_model.bin")
    told = refused(model)
    assert len(told) == 5
    assert "PixArtAlphaPipeline" in told[0]
    assert "text_encoder is T5Encoder, not CLIPTextModel" in told[1]
    assert "text_time" in told[2]
    assert "tokenizer/" in told[3]
    assert "vae/ holds no" in told[4]


def test_new_tokens_lie_beside_the_one_text_encoder(
    tiny_sd15_base: BaseModel, tiny_sd15_folder: Path, tmp_path: Path
) -> None:
    spec = spec_of(tiny_sd15_folder, train_text_encoder_ti=True, instance_prompt="a photo of TOK")
    base = taught(tiny_sd15_base, spec)
    before = encode(base.tokenizers, base.text_encoders, ["a toy", "a toy"], family=SD15).prompt_BLD
    with add_tokens(base, spec) as tokens, add_adapters(base, spec) as adapters:
        assert {name: tuple(rows.shape) for name, rows in tokens.rows.items()} == {"tokens.clip_l": (2, 32)}
        said = encode(base.tokenizers, base.text_encoders, ["<s0><s1>", "a toy"], family=SD15)
        assert said.pooled_BP is None
        assert not torch.equal(said.prompt_BLD[0], before[0])
        assert torch.equal(said.prompt_BLD[1], before[1])
        said.prompt_BLD.sum().backward()
        assert tokens.rows["tokens.clip_l"].grad is not None
        tensors = adapters.tensors() | {name: rows.detach() for name, rows in tokens.rows.items()}
    facts = facts_of(spec, step=1, captions=["a"], layers_per_block=1, family=SD15)
    write_kohya(tmp_path / "a", tensors, facts, dtype="float32")
    with safe_open(tmp_path / "a", framework="pt") as opened:
        assert [key for key in opened.keys() if key.startswith("bundle_emb")] == ["bundle_emb.TOK.clip_l"]  # noqa: SIM118
