"""What model files are, from their headers; and which files are refused."""

import json
import pickle

import pytest
from tests.fixtures.model_files import SD15_BASE, SD15_LORA, SDXL_BASE, SDXL_LORA, VAE, model_file

from giornata.domain.errors import InvalidInput
from giornata.domain.generation.model_header import (
    MAX_HEADER_BYTES,
    header_end,
    name_faults,
    read_header,
    size_faults,
)
from giornata.domain.generation.model_kinds import ModelFamily, ModelKind, facts_of_model

SDXL, SD15 = ModelFamily.SDXL, ModelFamily.SD15
PREFIX = "model.diffusion_model."
KNOWN = {
    "SDXL checkpoint": (SDXL_BASE, {}, ModelKind.BASE, SDXL),
    "SD 1.5 checkpoint": (SD15_BASE, {}, ModelKind.BASE, SD15),
    "SDXL refiner": (
        {
            f"{PREFIX}input_blocks.0.0.weight": (8, 4, 3, 3),
            "conditioner.embedders.0.model.token_embedding.weight": (8,),
        },
        {},
        ModelKind.REFINER,
        SDXL,
    ),
    "VAE": (VAE, {}, ModelKind.VAE, None),
    "VAE with metadata": (VAE, {"modelspec.architecture": "stable-diffusion-xl-v1-base/vae"}, ModelKind.VAE, SDXL),
    "kohya SDXL LoRA": (SDXL_LORA, {}, ModelKind.LORA, SDXL),
    "kohya SD 1.5 LoRA": (SD15_LORA, {}, ModelKind.LORA, SD15),
    "diffusers SDXL LoRA": (
        {"unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.lora_A.weight": (4, 2048)},
        {},
        ModelKind.LORA,
        SDXL,
    ),
    "LoKr with an update of rank 512": (
        {
            "lora_unet_mid_block_attentions_0_proj_in.lokr_w1": (16, 20),
            "lora_unet_mid_block_attentions_0_proj_in.lokr_w2_a": (80, 32),
            "lora_unet_mid_block_attentions_0_proj_in.lokr_w2_b": (32, 64),
        },
        {"ss_base_model_version": "sd_v1"},
        ModelKind.LORA,
        SD15,
    ),
    "LoRA of convolutions with metadata": (
        {"lora_unet_down_blocks_0_resnets_0_conv1.lora_down.weight": (4, 8, 3, 3)},
        {"ss_base_model_version": "sd_v1"},
        ModelKind.LORA,
        SD15,
    ),
    "LoRA that tells no family": (
        {"unet.down_blocks.0.attentions.0.proj_in.lora_A.weight": (4, 8)},
        {},
        ModelKind.LORA,
        None,
    ),
    "checkpoint of a job": (
        {"adapter.unet.mid_block.attentions.0.proj_in.lora_A.weight": (4, 8)},
        {"giornata": json.dumps({"family": "sd15"})},
        ModelKind.LORA,
        SD15,
    ),
    "SDXL embedding": ({"clip_l": (2, 768), "clip_g": (2, 1280)}, {}, ModelKind.EMBEDDING, SDXL),
    "A1111 embedding": ({"emb_params": (2, 768)}, {}, ModelKind.EMBEDDING, SD15),
    "diffusers embedding": ({"<cat-toy>": (768,)}, {}, ModelKind.EMBEDDING, SD15),
    "diffusers SDXL ControlNet": (
        {"controlnet_cond_embedding.conv_in.weight": (8, 3), "add_embedding.linear_1.weight": (8, 8)},
        {},
        ModelKind.CONTROLNET,
        SDXL,
    ),
    "SD 1.5 ControlNet of its authors": (
        {
            "control_model.input_hint_block.0.weight": (8, 3, 3, 3),
            "control_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": (8, 768),
        },
        {},
        ModelKind.CONTROLNET,
        SD15,
    ),
}
REFUSED = {
    "SD 2 checkpoint": ({**SD15_BASE, "cond_stage_model.model.token_embedding.weight": (8,)}, "Stable Diffusion 2"),
    "inpainting checkpoint": ({**SD15_BASE, f"{PREFIX}input_blocks.0.0.weight": (8, 9, 3, 3)}, "9 channels"),
    "UNet alone": ({f"{PREFIX}input_blocks.0.0.weight": (8, 4, 3, 3)}, "no text encoder"),
    "UNet of a folder": ({"conv_in.weight": (8, 4, 3, 3), "down_blocks.0.x": (1,)}, "one part of a folder"),
    "SD 2 LoRA": ({"unet.x.attn2.to_k.lora_A.weight": (4, 1024)}, "Stable Diffusion 2"),
    "Flux LoRA": ({"lora_unet_double_blocks_0_img_attn_proj.lora_down.weight": (4, 8)}, "Flux"),
    "SD 3 checkpoint": ({"model.diffusion_model.joint_blocks.0.x": (1,)}, "Stable Diffusion 3"),
    "kohya DoRA": ({**SDXL_LORA, "lora_unet_input_blocks_4_1_proj_in.dora_scale": (8, 1)}, "holds DoRA"),
    "diffusers DoRA": (
        {f"unet.x.attn2.to_k.{part}": (4, 2048) for part in ("lora_A.weight", "lora_magnitude_vector")},
        "holds DoRA",
    ),
    "LoHa": ({"lora_unet_mid_block_attentions_0_proj_in.hada_w1_b": (4, 768)}, "holds LoHa"),
    "LoRA of rank 513": (
        {"lora_unet_mid_block_attentions_0_proj_in.lora_down.weight": (513, 768)},
        "of rank 513 in lora_unet_mid_block_attentions_0_proj_in, and 512 is the most",
    ),
    "LoKr of whole factors": (
        {
            "lora_unet_mid_block_attentions_0_proj_in.lokr_w1": (16, 16),
            "lora_unet_mid_block_attentions_0_proj_in.lokr_w2": (80, 48),
        },
        "of rank 768",
    ),
    "LoKr with a core": (
        {f"lora_unet_conv_in.lokr_{part}": (4, 4, 3, 3) for part in ("w1", "t2")},
        r"holds LoKr with a core",
    ),
    "classifier": ({"layers.0.weight": (4, 8, 3)}, "unknown kind, such as layers.0.weight"),
    "empty file": ({}, "unknown kind, such as none"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_header_tells_kind_and_family(name):
    shapes, metadata, kind, family = KNOWN[name]
    facts = facts_of_model(read_header(model_file(shapes, metadata), where="x"), where="x")
    assert (facts.kind, facts.family) == (kind, family)


def test_checkpoint_of_a_job_that_trains_a_dora_is_refused() -> None:
    shapes = {f"adapter.unet.x.to_k.{part}": (4, 8) for part in ("lora_A.weight", "lora_magnitude_vector")}
    header = read_header(model_file(shapes, {"giornata": json.dumps({"family": "sd15"})}), where="spec.loras.0")
    with pytest.raises(InvalidInput) as refused:
        facts_of_model(header, where="spec.loras.0")
    (fault,) = refused.value.faults
    assert (fault.where, fault.hint) == ("spec.loras.0", "train it as a plain LoRA")


@pytest.mark.parametrize("name", REFUSED)
def test_file_that_cannot_be_used_is_refused_with_the_reason(name):
    shapes, words = REFUSED[name]
    with pytest.raises(InvalidInput, match=words):
        facts_of_model(read_header(model_file(shapes), where="x"), where="x")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"state_dict": 1}, protocol=2), "is pickled"),
        (pickle.dumps({"state_dict": 1}, protocol=4), "is pickled"),
        (b"PK\x03\x04" + b"\0" * 60, "zip archive"),
        (b"GGUF" + b"\0" * 60, "GGUF"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\n  <html><body>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b'{"error": "no access"}', "is not a .safetensors file"),
        (b"", "is not a .safetensors file"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{", "is not a .safetensors file"),
    ],
)
def test_model_file_of_other_format_is_refused_by_its_first_bytes(content, words):
    with pytest.raises(InvalidInput, match=words):
        header_end(content, where="x")


def test_header_of_length_0x80_is_no_pickle():
    shapes = {"a" * 66: (2,)}
    content = model_file(shapes)
    assert content[0] == 0x80
    assert read_header(content, where="x").shapes == shapes


@pytest.mark.parametrize(
    "text",
    [b'{"a": 1}', b'{"a": {"shape": 3}}', b"{nonsense}", b'{"a": {"shape": [1]}}', b"[" * 2000, b'{"a": []}'],
)
def test_header_that_is_no_description_of_tensors_is_refused(text):
    with pytest.raises(InvalidInput, match=r"not a \.safetensors|unreadable"):
        read_header(len(text).to_bytes(8, "little") + text, where="x")


def test_file_of_another_length_than_its_header_says_is_at_fault():
    content = model_file(VAE)
    header = read_header(content, where="x")
    assert size_faults(header, len(content), where="x") == []
    (fault,) = size_faults(header, len(content) - 1, where="x")
    assert f"promises {len(content)}" in fault.message


@pytest.mark.parametrize("name", ["a.ckpt", "A.PT", "https://x/y/model.bin?download=true", "x.pkl", "x.pth"])
def test_file_of_a_pickled_format_is_refused_by_name(name):
    (fault,) = name_faults(name, where="spec.model")
    assert "only .safetensors files are taken" in fault.message and "convert" in fault.hint


@pytest.mark.parametrize("name", ["a.safetensors", "owner/name", "my.model", "https://x/y?file=a.ckpt.safetensors"])
def test_valid_model_names_have_no_faults(name):
    assert name_faults(name, where="x") == []
