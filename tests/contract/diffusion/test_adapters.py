"""DoRA, LoKr, and layers chosen and sized one by one: equal to peft's own layers, and whole in users' files."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from peft import LoKrConfig, LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file
from tests.contract.diffusion.test_formats import facts, noisy
from tests.contract.diffusion.test_formats import outputs as exact_outputs
from tests.unit.diffusion.test_lora import outputs, same, shape_of, spec_of

from giornata.diffusion.adapter.adapter_plan import holds, size_of
from giornata.diffusion.adapter.lora import ADAPTER, Adapters, add_adapters
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.families.sdxl import kohya_name
from giornata.diffusion.files.formats import FILE_NAMES, write_kohya, write_lora
from giornata.diffusion.files.kohya_file import kohya_layers, kohya_parts, layer_of, split_name
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec

KOHYA = {"output_formats": ["kohya"]}
LOKR = {"adapter_type": "lokr", **KOHYA}
MIXED = ["to_q", "to_out.0", "conv1", "proj_in"]


def trained(adapters: Adapters) -> dict[str, torch.Tensor]:
    adapters.load(noisy(adapters))
    return adapters.tensors()


def pefts(unet: Any, config: Any, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The UNet under peft's own layers, with these weights."""
    unet = copy.deepcopy(unet)
    inject_adapter_in_model(config, unet, adapter_name="theirs")
    theirs = {name.removeprefix("unet."): value for name, value in tensors.items()}
    result = set_peft_model_state_dict(unet, theirs, adapter_name="theirs")
    assert not result.unexpected_keys
    return unet.eval()


# ---- DoRA


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_fresh_dora_changes_nothing_and_leaves_nothing(tiny_folder: Path, dtype: torch.dtype) -> None:
    spec = spec_of(tiny_folder, use_dora=True, train_text_encoder=True, target_modules=MIXED)
    base = load_base(spec, device="cpu", dtype=dtype)
    before, shape = outputs(base), shape_of(base)
    with add_adapters(base, spec) as adapters:
        vectors = {name: p for name, p in adapters.parameters.items() if name.endswith(".lora_magnitude_vector")}
        assert len(vectors) == len(adapters.parameters) / 3
        assert {parameter.dtype for parameter in adapters.parameters.values()} == {torch.float32}
        assert same(outputs(base), before)
        trained(adapters)
        assert not any(torch.equal(a, b) for a, b in zip(outputs(base), before, strict=True))
    assert same(outputs(base), before)
    assert shape_of(base) == shape


def test_dora_outputs_equal_those_of_peft(tiny_base: BaseModel, tiny_folder: Path) -> None:
    spec = spec_of(tiny_folder, use_dora=True, alpha=3, target_modules=MIXED)
    with add_adapters(tiny_base, spec) as adapters:
        tensors = trained(adapters)
        ours = exact_outputs(tiny_base.unet, tiny_base.text_encoders)["unet"]
    config = LoraConfig(r=4, lora_alpha=3, target_modules=MIXED, use_dora=True)
    theirs = exact_outputs(pefts(tiny_base.unet, config, tensors), tiny_base.text_encoders)["unet"]
    # ours rounds the norm to float32 also when all else is float64
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    with add_adapters(tiny_base, spec_of(tiny_folder, alpha=3, target_modules=MIXED)) as plain:
        plain.load({name: value for name, value in tensors.items() if name in plain.parameters})
        without = exact_outputs(tiny_base.unet, tiny_base.text_encoders)["unet"]
    assert not torch.allclose(without, theirs, rtol=1e-2, atol=1e-2)


def test_magnitudes_learn_and_norms_are_constants_of_the_gradient(tiny_base: BaseModel, tiny_folder: Path) -> None:
    spec = spec_of(tiny_folder, use_dora=True, target_modules=["to_q"])
    gradients = []
    config = LoraConfig(r=4, lora_alpha=4, target_modules=["to_q"], use_dora=True)
    with add_adapters(tiny_base, spec) as adapters:
        tensors = trained(adapters)
        gradients.append(_gradients(tiny_base.unet))
    gradients.append(_gradients(pefts(tiny_base.unet, config, tensors)))
    ours, theirs = gradients
    assert len(ours) == len(theirs) == len(tensors)
    assert any("magnitude" in name for name in ours)
    for name, value in ours.items():
        assert value.any(), name
        assert torch.allclose(value, theirs[name], rtol=1e-3, atol=1e-6), name


def _gradients(unet: Any) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    ids = {"text_embeds": torch.ones((1, 32)), "time_ids": torch.full((1, 6), 64.0)}
    latents_BCHW, text_BLD = torch.randn((1, 4, 8, 8), generator=draw), torch.randn((1, 77, 64), generator=draw)
    unet(latents_BCHW, 300, text_BLD, added_cond_kwargs=ids).sample.square().mean().backward()
    named = {name.replace("theirs", ADAPTER): p.grad for name, p in unet.named_parameters()}
    return {name: grad for name, grad in named.items() if ADAPTER in name and grad is not None}


# ---- LoKr


@pytest.mark.parametrize(
    "fields",
    [{}, {"decompose_factor": 8}, {"rank": 1, "decompose_both": True}, {"rank": 64, "alpha": 16}],
    ids=["near the root", "factor", "both thin", "both whole"],
)
def test_lokr_is_pefts_and_a_fresh_one_changes_nothing(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    spec = spec_of(tiny_folder, **LOKR, **{"target_modules": MIXED, "alpha": 3, **fields})
    before, shape = outputs(tiny_base), shape_of(tiny_base)
    torch.manual_seed(9)
    expected = torch.rand(2)
    torch.manual_seed(9)
    with add_adapters(tiny_base, spec) as adapters:
        assert same(outputs(tiny_base), before)
        tensors = trained(adapters)
        ours = exact_outputs(tiny_base.unet, tiny_base.text_encoders)["unet"]
        path = write_kohya(tmp_path / "lokr.safetensors", tensors, facts(spec), dtype="float32")
    with pytest.raises(WorkloadFailed, match="diffusers loads no LoKr"):
        write_lora("diffusers", tmp_path / "other.safetensors", tensors, facts(spec))
    assert torch.equal(torch.rand(2), expected)
    assert same(outputs(tiny_base), before)
    assert shape_of(tiny_base) == shape
    config = LoKrConfig(
        r=spec.rank,
        alpha=spec.alpha,
        target_modules=MIXED,
        decompose_both=spec.decompose_both,
        decompose_factor=spec.decompose_factor,
    )
    theirs = pefts(tiny_base.unet, config, tensors)
    assert torch.allclose(ours, exact_outputs(theirs, tiny_base.text_encoders)["unet"], rtol=1e-9, atol=1e-9)
    _assert_lycoris_reads(load_file(path), theirs, {name.rpartition(".lokr_")[0] for name in tensors})
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata()["ss_network_module"] == "lycoris.kohya"
        assert '"algo": "lokr"' in opened.metadata()["ss_network_args"]


def _assert_lycoris_reads(content: dict[str, torch.Tensor], theirs: Any, layers: set[str]) -> None:
    """The difference of weights that LyCORIS computes from the file alone: its scale is 1 for two whole factors."""
    for layer in layers:
        part = {
            key.rpartition(".")[2]: v for key, v in content.items() if _of(key, kohya_name(layer, layers_per_block=1))
        }
        first = part["lokr_w1"] if "lokr_w1" in part else part["lokr_w1_a"] @ part["lokr_w1_b"]
        second = part["lokr_w2"] if "lokr_w2" in part else part["lokr_w2_a"] @ part["lokr_w2_b"]
        ranks = [part[name].shape[0] for name in ("lokr_w1_b", "lokr_w2_b") if name in part]
        scale = part["alpha"].item() / ranks[0] if ranks else 1.0
        module = theirs.get_submodule(layer.removeprefix("unet."))
        wanted = module.get_delta_weight("theirs")
        found = torch.kron(first.reshape(*first.shape, *[1] * (second.ndim - 2)), second) * scale
        assert torch.allclose(found.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-7), layer


def _of(key: str, name: str) -> bool:
    return key.partition(".")[0] == name


def test_initial_weights_of_a_layer_are_a_function_of_seed_and_name(tiny_base: BaseModel, tiny_folder: Path) -> None:
    few, more = ({"target_modules": targets, "decompose_both": True} for targets in (["to_q"], ["to_q", "to_k"]))
    with add_adapters(tiny_base, spec_of(tiny_folder, **LOKR, **few, rank=1)) as adapters:
        first = adapters.tensors()
    torch.manual_seed(3)
    with add_adapters(tiny_base, spec_of(tiny_folder, **LOKR, **more, rank=1)) as adapters:
        second = adapters.tensors()
    assert all(torch.equal(second[name], value) for name, value in first.items())
    zero = {name.rpartition(".")[2] for name, value in second.items() if not value.any()}
    assert zero == {"lokr_w2_b"}
    for name, value in second.items():
        if value.any():
            assert value.abs().max() <= value.shape[1] ** -0.5, name


# ---- which layers, and how large


def test_patterns_are_pefts_whatever_their_order() -> None:
    layer = "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k"
    assert holds("to_k", layer)
    assert holds("attn2.to_k", layer)
    assert holds(r"down_blocks\.1\..*", layer)
    assert holds("^unet.*", layer)
    assert not holds("o_k", layer)
    assert not holds("down_blocks.1", layer)
    for patterns in ({"to_k": 2, "attn2.to_k": 8}, {"attn2.to_k": 8, "to_k": 2}):
        spec = TrainSpec.model_validate({"model": "m", "dataset": "ds_1", "rank_pattern": patterns})
        assert size_of(spec, layer).rank == 8
        assert size_of(spec, layer).alpha == 16  # the spec's alpha, as with peft
        assert size_of(spec, "unet.mid_block.attentions.0.proj_in").rank == 16


PATTERNS: dict[str, Any] = {
    "train_text_encoder": True,
    "text_encoder_target_modules": ["q_proj", "out_proj", "fc1"],
    "rank_pattern": {"to_k": 2, r"text_encoder(_2)?\..*": 3, "up_blocks.*to_q": 8},
    "alpha_pattern": {"to_out.0": 7.5, r"text_encoder_2\..*fc1": 1.5},
    "lora_unet_blocks": "unet.down_blocks.1, up_blocks.0.attentions.1",
}


@pytest.mark.parametrize("adapter", [{}, {"use_dora": True}, {"use_rslora": True}], ids=["lora", "dora", "rslora"])
@pytest.mark.parametrize("kind", list(FILE_NAMES))
def test_plain_diffusers_loads_what_was_trained(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path, adapter: dict[str, Any], kind: Any
) -> None:
    if kind == "kohya" and adapter.get("use_dora"):
        pytest.skip("diffusers drops the magnitudes of kohya files, and says so")
    spec = spec_of(tiny_folder, **adapter, **PATTERNS)
    before = exact_outputs(tiny_base.unet, tiny_base.text_encoders)
    with add_adapters(tiny_base, spec) as adapters:
        tensors = trained(adapters)
        ours = exact_outputs(tiny_base.unet, tiny_base.text_encoders)
        path = write_lora(kind, tmp_path / FILE_NAMES[kind], tensors, facts(spec), dtype="float32")
    pipeline = StableDiffusionXLPipeline.from_pretrained(tiny_folder)
    pipeline.load_lora_weights(str(path))
    theirs = exact_outputs(pipeline.unet, (pipeline.text_encoder, pipeline.text_encoder_2))
    # kohya's file has one alpha: factors of the others are multiplied into float32 weights
    tolerance = 1e-5 if adapter or kind == "kohya" else 1e-9
    for name, value in ours.items():
        assert torch.allclose(theirs[name], value, atol=tolerance, rtol=tolerance), name
        assert not torch.allclose(before[name], value, atol=1e-3), name


def test_a_kohya_file_is_whole_where_diffusers_reads_no_text_encoder(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path
) -> None:
    """diffusers tells names of text encoders apart by out_proj; others do not need it."""
    spec = spec_of(tiny_folder, train_text_encoder=True, text_encoder_target_modules=["q_proj"])
    with add_adapters(tiny_base, spec) as adapters:
        tensors = trained(adapters)
    content = load_file(write_kohya(tmp_path / "lora", tensors, facts(spec), dtype="float32"))
    layers = kohya_layers({layer_of(name) for name in tensors}, layers_per_block=1)
    read, _, others = kohya_parts(content)
    found = {layers[split_name(name)[0]] + split_name(name)[1]: value for name, value in read.items()}
    assert not others
    assert found.keys() == tensors.keys()
    assert all(torch.equal(value, tensors[name]) for name, value in found.items())


def test_layers_get_their_own_ranks_and_alphas(tiny_base: BaseModel, tiny_folder: Path) -> None:
    with add_adapters(tiny_base, spec_of(tiny_folder, **PATTERNS)) as adapters:
        ranks = {name: value.shape[0] for name, value in adapters.parameters.items() if ".lora_A." in name}
        blocks = {name.split(".transformer")[0] for name in ranks if name.startswith("unet.")}
        assert blocks == {"unet.down_blocks.1.attentions.0", "unet.up_blocks.0.attentions.1"}
        for name, rank in ranks.items():
            text, key = name.startswith("text_encoder"), ".to_k." in name
            wanted = 3 if text else 2 if key else 8 if name.startswith("unet.up") and ".to_q." in name else 4
            assert rank == wanted, name
        scales = {name: m.scaling[ADAPTER] for name, m in tiny_base.unet.named_modules() if hasattr(m, "scaling")}
        assert {scale for name, scale in scales.items() if name.endswith("to_out.0")} == {7.5 / 4}
        assert {scale for name, scale in scales.items() if name.endswith("to_k")} == {4 / 2}


def test_a_kohya_file_of_a_dora_says_what_its_readers_compute(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path
) -> None:
    """LyCORIS's formula: (W + scale·up·down) · dora_scale / its norm over each output."""
    spec = spec_of(tiny_folder, use_dora=True, alpha=3, target_modules=["to_q", "conv1"])
    with add_adapters(tiny_base, spec) as adapters:
        tensors = trained(adapters)
    content = load_file(write_kohya(tmp_path / "dora", tensors, facts(spec), dtype="float32"))
    config = LoraConfig(r=4, lora_alpha=3, target_modules=["to_q", "conv1"], use_dora=True)
    theirs = pefts(tiny_base.unet, config, tensors)
    for layer in {name.split(".lora_")[0] for name in tensors}:
        target = kohya_name(layer, layers_per_block=1)
        module = theirs.get_submodule(layer.removeprefix("unet."))
        weight = module.get_base_layer().weight.detach()
        up, down = content[f"{target}.lora_up.weight"], content[f"{target}.lora_down.weight"]
        scale = content[f"{target}.alpha"].item() / down.shape[0]
        merged = weight + scale * (up.flatten(1) @ down.flatten(1)).reshape(weight.shape)
        norm = merged.flatten(1).norm(dim=1).reshape(-1, *[1] * (weight.ndim - 1))
        module.merge()
        assert torch.allclose(
            merged * content[f"{target}.dora_scale"] / norm, module.get_base_layer().weight, atol=1e-5
        )


def test_unknown_layers_blocks_and_patterns_are_all_told_at_once(tiny_base: BaseModel, tiny_folder: Path) -> None:
    shape = shape_of(tiny_base)
    wrong: dict[str, Any] = {
        "target_modules": ["to_q", "to_z"],
        "lora_unet_blocks": ["down_blocks.1", "side_blocks.7"],
        "train_text_encoder": True,
        "text_encoder_target_modules": ["q_proj", "z_proj"],
        "rank_pattern": {"to_q": 3, "to_w": 3},
        "alpha_pattern": {r"up_blocks\..*": 2.0},
    }
    with pytest.raises(WorkloadFailed) as failure:
        add_adapters(tiny_base, spec_of(tiny_folder, **wrong))
    assert failure.value.reason is Reason.BAD_SPEC
    told = {fault.where.removeprefix("spec."): fault for fault in failure.value.faults}
    assert set(told) == {
        "target_modules",
        "lora_unet_blocks",
        "text_encoder_target_modules",
        "rank_pattern",
        "alpha_pattern",
    }
    assert "to_z" in told["target_modules"].message
    assert "side_blocks.7" in told["lora_unet_blocks"].message
    assert "up_blocks.0.attentions.1" in told["lora_unet_blocks"].hint
    assert "z_proj" in told["text_encoder_target_modules"].message
    assert "to_w" in told["rank_pattern"].message
    assert "to_q" not in told["rank_pattern"].message
    assert "to_q" in told["rank_pattern"].hint
    assert "down_blocks.1.attentions.0" in told["alpha_pattern"].hint
    assert shape_of(tiny_base) == shape


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"adapter_type": "lokr"}, "output_formats"),
        ({**LOKR, "use_dora": True}, "use_dora"),
        ({**LOKR, "use_rslora": True}, "use_rslora"),
        ({"decompose_both": True}, "decompose_both"),
        ({"decompose_factor": 4}, "decompose_factor"),
        ({**LOKR, "decompose_factor": 0}, "decompose_factor"),
        ({"text_encoder_target_modules": ["fc1"]}, "text_encoder_target_modules"),
        ({"rank_pattern": {"to_(q": 4}}, "rank_pattern"),
        ({"rank_pattern": {"to_q": 0}}, "rank_pattern"),
        ({"adapter_type": "loha"}, "adapter_type"),
    ],
)
def test_spec_with_contradicting_adapter_fields_is_refused(
    tiny_folder: Path, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        spec_of(tiny_folder, **fields)


def test_kohyas_and_lycoris_words_are_understood(tiny_folder: Path) -> None:
    spec = spec_of(tiny_folder, algo="LoKr", factor=4, **KOHYA).model_dump(mode="json")
    assert (spec["adapter_type"], spec["decompose_factor"]) == ("lokr", 4)
    assert spec_of(tiny_folder, network_module="networks.lora", dora_wd=True).use_dora
