"""LoRA files in, LoRA files out: under plain diffusers they do what the algebra says, and tell the truth."""

import copy
import json

import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.families import SD15
from giornata.diffusion.files.formats import FILE_NAMES, write_lora
from giornata.diffusion.files.lora_algebra import Cut, Method
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.files.lora_file import read_lora
from giornata.diffusion.files.lora_tool import (
    in_kohya_names,
    inspect_file,
    main,
    merge_files,
    resize_file,
    updates_of,
)
from giornata.domain.errors import InvalidInput
from giornata.protocol.specs import TrainSpec

TARGETS = ("to_k", "to_q", "to_v", "to_out.0", "ff.net.2", "conv1")
TOLERANCE = 2e-6  # files are float32 here


@pytest.fixture(scope="module")
def pipeline(tiny_folder):
    return StableDiffusionXLPipeline.from_pretrained(tiny_folder, torch_dtype=torch.float32)


@pytest.fixture(scope="module")
def make(tiny_base, tmp_path_factory):
    """Writes a LoRA file: `make("kohya", seed=1, rank=4)`."""
    folder = tmp_path_factory.mktemp("loras")

    def write(kind, *, seed, targets=TARGETS, dtype="float32", prompt="a photo of sks toy", **fields):
        spec = TrainSpec.model_validate(
            {"model": "owner/name", "dataset": "ds_1", "seed": seed, "target_modules": targets, **fields}
            | {"instance_prompt": prompt}
        )
        draw = torch.Generator().manual_seed(seed)
        with add_adapters(tiny_base, spec) as adapters:
            tensors = {name: torch.randn(each.shape, generator=draw) for name, each in adapters.tensors().items()}
        facts = facts_of(spec, step=7, captions=["toy, red"], layers_per_block=1, output_name=f"lora{seed}")
        path = folder / f"{kind}-{seed}-{dtype}-{len(targets)}-{spec.rank}.safetensors"
        return write_lora(kind, path, tensors, facts, dtype=dtype)

    return write


def fused(pipeline, *files):
    """UNet and text encoder weights with these (file, weight) loaded and fused by diffusers, one after the other."""
    models = {name: copy.deepcopy(getattr(pipeline, name).state_dict()) for name in ("unet", "text_encoder")}
    for path, weight in files:
        pipeline.load_lora_weights(str(path.parent), weight_name=path.name)
        pipeline.fuse_lora(components=["unet", "text_encoder"], lora_scale=weight)
        pipeline.unload_lora_weights()
    after = {name: copy.deepcopy(getattr(pipeline, name).state_dict()) for name in models}
    for name, state in models.items():
        getattr(pipeline, name).load_state_dict(state)
    return {f"{name}.{key}": after[name][key] for name in after for key in after[name]}


def same(first, second):
    assert first.keys() == second.keys()
    wrong = {key: float((first[key] - second[key]).abs().max()) for key in first}
    largest = max(float(value.abs().max()) for value in second.values())
    return max(wrong.values()) <= TOLERANCE * largest


def updates(path):
    return updates_of(read_lora(path))


def metadata_of(path):
    with safe_open(path, framework="pt") as opened:
        return opened.metadata()


@pytest.mark.parametrize("kinds", [("kohya", "kohya"), ("diffusers", "diffusers"), ("kohya", "diffusers")])
def test_a_merged_file_does_what_the_files_do_one_after_the_other(pipeline, make, tmp_path, kinds):
    first = make(kinds[0], seed=1, rank=4, alpha=2.0, train_text_encoder=True)
    second = make(kinds[1], seed=2, rank=3, targets=("to_k", "conv1", "proj_in"))
    out = tmp_path / "merged.safetensors"
    report = merge_files([first, second], [0.7, -0.5], out)
    assert report["naming"] == ("diffusers" if kinds == ("diffusers", "diffusers") else "kohya")
    assert set(report["ranks"]) == {"3", "4", "7"}
    plain = fused(pipeline)
    wanted = fused(pipeline, (first, 0.7), (second, -0.5))
    assert not same(wanted, plain)
    assert same(fused(pipeline, (out, 1.0)), wanted)


@pytest.mark.parametrize("kind", list(FILE_NAMES))
@pytest.mark.parametrize("cut", [Cut(rank=2), Cut(rank=4, method=Method.SV_FRO, target=0.8)], ids=["fixed", "sv_fro"])
def test_a_resized_file_loads_and_is_near_by_as_much_as_it_says(pipeline, make, tmp_path, kind, cut):
    path, out = make(kind, seed=3, rank=4, alpha=8.0, train_text_encoder=True), tmp_path / "small.safetensors"
    report = resize_file(path, out, cut)
    before, after = updates(path), updates(out)
    assert before.keys() == after.keys()
    kept = []
    for name, layer in before.items():
        dense, made = torch.linalg.svdvals(layer.delta()), after[name]
        lost = float((layer.delta() - made.delta()).norm() / dense.norm())
        assert lost == pytest.approx(float(dense[made.rank :].norm() / dense.norm()), abs=1e-5)
        assert made.scale * made.rank == pytest.approx(2.0 * max(each.rank for each in after.values()))
        kept.append(float(dense[: made.rank].norm() / dense.norm()))
    assert report["kept_norm"]["least"] == pytest.approx(min(kept), abs=1e-6)
    if cut.method is Method.SV_FRO:
        assert min(kept) >= 0.8 - 1e-6 and len(report["ranks"]) > 1
    plain = fused(pipeline)
    loaded = fused(pipeline, (out, 1.0))
    moved = {key: (loaded[key] - plain[key]).double() for key in plain if not torch.equal(loaded[key], plain[key])}
    assert len(moved) == len(after) - sum(name.startswith(("lora_te2", "text_encoder_2")) for name in after)
    norm = sum(float(each.norm()) ** 2 for each in moved.values()) ** 0.5
    wanted = sum(
        float(each.delta().norm()) ** 2
        for name, each in after.items()
        if not name.startswith(("lora_te2", "text_encoder_2"))
    )
    assert norm == pytest.approx(wanted**0.5, rel=1e-4)


def test_a_new_alpha_is_written_and_changes_nothing_else(make, tmp_path):
    path, out = make("kohya", seed=3, rank=4), tmp_path / "small.safetensors"
    resize_file(path, tmp_path / "plain.safetensors", Cut(rank=2))
    resize_file(path, out, Cut(rank=2), alpha=1.0)
    plain, other = updates(tmp_path / "plain.safetensors"), updates(out)
    for name, layer in other.items():
        assert layer.scale * layer.rank == pytest.approx(1.0)
        assert torch.allclose(layer.delta(), plain[name].delta(), atol=1e-4)
    assert metadata_of(out)["ss_network_alpha"] == "1.0"


def test_lora_files_in_kohya_and_diffusers_naming_hold_same_layers(make):
    kohya, diffusers = (read_lora(make(kind, seed=4, rank=4, alpha=2.0)) for kind in ("kohya", "diffusers"))
    ours, theirs = updates_of(kohya), in_kohya_names(diffusers, updates_of(diffusers))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name].delta(), theirs[name].delta()) for name in ours)


def test_a_resized_files_metadata_are_the_old_ones_with_what_changed(make, tmp_path):
    path, out = make("kohya", seed=3, rank=4), tmp_path / "small.safetensors"
    resize_file(path, out, Cut(rank=2))
    before, after = metadata_of(path), metadata_of(out)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed == {
        "ss_network_dim",
        "ss_network_alpha",
        "ss_network_args",
        "sshs_model_hash",
        "modelspec.hash_sha256",
        "giornata.made_from",
    }
    assert after["ss_network_dim"] == "2"
    assert json.loads(after["ss_network_args"])["conv_dim"] == "2"
    source = json.loads(after["giornata.made_from"])
    assert (source["deed"], source["files"][0]["name"]) == ("resize", path.name)
    assert str(tmp_path) not in json.dumps(after)


def test_a_merged_file_says_what_is_true_of_all(make, tmp_path):
    first, second = make("kohya", seed=1, rank=4), make("kohya", seed=2, rank=4, prompt="in the style of oil")
    out = tmp_path / "merged.safetensors"
    merge_files([first, second], [1.0, 0.5], out)
    after = metadata_of(out)
    assert after["modelspec.architecture"] == "stable-diffusion-xl-v1-base/lora"
    assert after["modelspec.trigger_phrase"] == "a photo of sks toy, in the style of oil"
    assert after["modelspec.merged_from"] == "lora1, lora2"
    assert "ss_seed" not in after and "modelspec.title" not in after
    assert after["ss_network_dim"] == "8"
    assert [each["weight"] for each in json.loads(after["giornata.made_from"])["files"]] == [1.0, 0.5]
    assert len(after["sshs_model_hash"]) == 64


def test_equal_input_makes_equal_bytes_in_the_precision_of_the_files(make, tmp_path):
    path = make("kohya", seed=3, rank=4, dtype="bfloat16")
    first, second = (resize_file(path, tmp_path / f"{n}.safetensors", Cut(rank=2)) for n in (1, 2))
    assert first["sha256"] == second["sha256"]
    dtypes = {tensor.dtype for name, tensor in load_file(tmp_path / "1.safetensors").items() if "alpha" not in name}
    assert dtypes == {torch.bfloat16}
    resize_file(path, tmp_path / "3.safetensors", Cut(rank=2), dtype="float32")
    assert read_lora(tmp_path / "3.safetensors").dtype is torch.float32


def test_tokens_in_a_file_are_carried_over(make, tmp_path):
    path = make("kohya", seed=3, rank=4)
    bundled = tmp_path / "bundled.safetensors"
    token = {"bundle_emb.sks.clip_l": torch.ones(2, 32)}
    save_file(load_file(path) | token, bundled, metadata=metadata_of(path))
    resize_file(bundled, tmp_path / "small.safetensors", Cut(rank=2))
    merge_files([bundled, path], [1.0, 1.0], tmp_path / "merged.safetensors")
    for name in ("small", "merged"):
        assert torch.equal(load_file(tmp_path / f"{name}.safetensors")["bundle_emb.sks.clip_l"], torch.ones(2, 32))


def test_an_inspection_says_what_there_is(make):
    report = inspect_file(make("kohya", seed=3, rank=4, alpha=2.0, train_text_encoder=True))
    assert (report["naming"], report["kind"], report["dtype"]) == ("kohya", "LoRA", "float32")
    assert set(report["layers"]) == {"unet", "text_encoder", "text_encoder_2"}
    assert (report["ranks"], report["alphas"]) == (
        {"4": sum(report["layers"].values())},
        {"2": sum(report["layers"].values())},
    )
    assert report["facts"]["trigger"] == "a photo of sks toy"
    assert report["facts"]["tags"] == "red (1), toy (1)"
    assert 1 <= report["rank_for_90_percent"] <= 4
    assert report["norm"] > report["strongest"][0]["norm"] > 0


def faults_of(call):
    with pytest.raises(InvalidInput) as refused:
        call()
    return str(refused.value)


def test_files_that_are_none_are_refused_by_name(tmp_path, make):
    (tmp_path / "noise.safetensors").write_bytes(b"nothing of the kind")
    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors")
    assert "noise.safetensors: cannot be read" in faults_of(lambda: read_lora(tmp_path / "noise.safetensors"))
    assert "holds no adapter that is known here" in faults_of(lambda: read_lora(tmp_path / "other.safetensors"))
    assert "cannot be read" in faults_of(lambda: read_lora(tmp_path / "absent.safetensors"))


def test_damaged_factors_are_listed_all_at_once(tmp_path):
    broken = {
        "a.lora_down.weight": torch.ones(4, 8),
        "b.lora_down.weight": torch.ones(4, 8),
        "b.lora_up.weight": torch.ones(8, 3),
        "c.lora_down.weight": torch.full((4, 8), float("nan")),
        "c.lora_up.weight": torch.ones(8, 4),
    }
    save_file(broken, tmp_path / "broken.safetensors")
    said = faults_of(lambda: updates(tmp_path / "broken.safetensors"))
    assert all(word in said for word in ("a: has .lora_down", "b: has factors", "c: holds values"))


def test_dora_file_is_inspected_but_refused_by_resize_and_merge(tmp_path, make):
    path = make("kohya", seed=3, rank=4)
    tensors = load_file(path)
    name = next(iter(tensors)).rsplit(".", 2)[0]
    save_file(tensors | {f"{name}.dora_scale": torch.ones(4)}, tmp_path / "dora.safetensors")
    assert inspect_file(tmp_path / "dora.safetensors")["kind"] == "DoRA"
    out = tmp_path / "out.safetensors"
    assert "fuse_lora" in faults_of(lambda: resize_file(tmp_path / "dora.safetensors", out, Cut(rank=2)))
    assert "DoRA" in faults_of(lambda: merge_files([path, tmp_path / "dora.safetensors"], [1.0, 1.0], out))
    assert not out.exists()


LOKR = {"adapter_type": "lokr", "output_formats": ["kohya"]}


def multiplied_out(tensors, name, *, alpha):
    """LyCORIS's formula, float64: the scale is alpha / rank, and 1 for two whole factors."""

    def factor(part):
        if f"{name}.{part}" in tensors:
            return tensors[f"{name}.{part}"].double()
        return tensors[f"{name}.{part}_a"].double() @ tensors[f"{name}.{part}_b"].double()

    first, second = factor("lokr_w1"), factor("lokr_w2")
    ranks = [tensors[key].shape[0] for key in (f"{name}.lokr_w1_b", f"{name}.lokr_w2_b") if key in tensors]
    scale = alpha / ranks[-1] if ranks else 1.0
    return scale * torch.kron(first.reshape(*first.shape, *[1] * (second.ndim - 2)), second).flatten(1)


@pytest.mark.parametrize("rank", [2, 64])  # w2 a product of two factors, and whole
def test_a_lokr_becomes_the_lora_that_is_nearest(pipeline, make, tmp_path, rank):
    targets = tuple(target for target in TARGETS if rank > 2 or target != "conv1")
    lokr = make("kohya", seed=5, rank=rank, alpha=3.0, targets=targets, **LOKR)
    plain, out = make("kohya", seed=6, rank=4), tmp_path / "out.safetensors"
    resize_file(lokr, out, Cut(rank=10**4), dtype="float32")
    made, tensors = updates(out), load_file(lokr)
    assert metadata_of(out)["ss_network_module"] == "networks.lora"
    assert (inspect_file(lokr)["kind"], inspect_file(out)["kind"]) == ("LoKr", "LoRA")
    for name, layer in made.items():
        whole = multiplied_out(tensors, name, alpha=3.0)
        assert float((layer.delta() - whole).norm()) < 1e-5 * float(whole.norm())
    assert not same(fused(pipeline, (out, 1.0)), fused(pipeline))  # diffusers loads it
    assert "--rank" in faults_of(lambda: merge_files([lokr, plain], [1.0, 1.0], tmp_path / "sum"))
    report = merge_files([lokr, plain], [0.5, 1.0], tmp_path / "sum", rank=3)
    assert set(report["ranks"]) == {"3"}


def test_a_lokr_whose_kernels_nobody_knows_is_refused_with_what_to_do(make, tmp_path):
    path = make("kohya", seed=5, rank=1, targets=("conv1",), **LOKR)
    assert "kernel" in faults_of(lambda: resize_file(path, tmp_path / "out", Cut(rank=2)))


def test_loras_of_different_models_are_not_added_up(tmp_path, make):
    tensors = {"lora_unet_a.lora_down.weight": torch.ones(4, 8), "lora_unet_a.lora_up.weight": torch.ones(8, 4)}
    save_file(tensors, tmp_path / "small.safetensors")
    tensors["lora_unet_a.lora_down.weight"] = torch.ones(4, 16)
    save_file(tensors, tmp_path / "large.safetensors")
    paths = [tmp_path / "small.safetensors", tmp_path / "large.safetensors"]
    assert "one base model" in faults_of(lambda: merge_files(paths, [1.0, 1.0], tmp_path / "out.safetensors"))


def test_the_program_reports_faults_as_data(tmp_path):
    report = tmp_path / "report.json"
    assert main([str(report), json.dumps({"command": "inspect", "file": str(tmp_path / "absent")})]) == 2
    (fault,) = json.loads(report.read_bytes())["faults"]
    assert fault["where"] == str(tmp_path / "absent") and fault["hint"]


def test_files_of_both_namings_of_stable_diffusion_15_are_merged(tiny_sd15_base, tmp_path):
    spec = TrainSpec.model_validate(
        {"model": "m", "dataset": "ds_1", "seed": 1, "instance_prompt": "a", "train_text_encoder": True}
    )
    facts = facts_of(spec, step=7, captions=["a"], layers_per_block=1, family=SD15)
    draw = torch.Generator().manual_seed(1)
    with add_adapters(tiny_sd15_base, spec) as adapters:
        tensors = {name: torch.randn(each.shape, generator=draw) for name, each in adapters.tensors().items()}
    paths = [write_lora(kind, tmp_path / kind, tensors, facts, dtype="float32") for kind in ("kohya", "diffusers")]
    merge_files(paths, [1.0, 1.0], tmp_path / "out")
    one, both = updates(paths[0]), updates(tmp_path / "out")
    assert both.keys() == one.keys()
    assert all(torch.allclose(layer.delta(), 2 * one[name].delta()) for name, layer in both.items())
