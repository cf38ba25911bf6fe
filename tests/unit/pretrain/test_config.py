"""Configurations are checked whole; recipes are sound."""

import json
from dataclasses import replace
from os.path import relpath
from pathlib import Path

import pytest
from pydantic import ValidationError

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.manifest import Manifest, Shard
from giornata.pretrain.recipes import RECIPES, read_config, sd2_base, sdxl_tiny
from giornata.pretrain.run_state.committed import rooted
from giornata.pretrain.run_state.progress import config_digest
from giornata.protocol.pretraining import Data, Encode, PretrainConfig
from giornata.protocol.pretraining_checks import FORMER, parse, parse_ingest


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_sound_and_come_back_as_they_were(name: str) -> None:
    config = RECIPES[name]("somewhere")
    assert parse(config.to_json()) == config


def test_all_faults_at_once() -> None:
    values = json.loads(json.dumps(sdxl_tiny().to_json()))
    values["train"] |= {"global_batch_size": 0, "proportion_empty_prompts": 2.0, "snr_gamma": -1.0}
    values["phases"][1] |= {"resolution": 33, "name": "32"}
    values["workers"] |= {"min_trainers": 5, "resize_interval_s": 0}
    with pytest.raises(InvalidInput) as refused:
        parse(values)
    assert {fault.where for fault in refused.value.faults} == {
        "train.global_batch_size",
        "train.proportion_empty_prompts",
        "train.snr_gamma",
        "phases.1.resolution",
        "phases.1.name",
        "workers.min_trainers",
        "workers.resize_interval_s",
    }


def test_types_and_unknown_fields_are_named() -> None:
    values = sdxl_tiny().to_json()
    values["train"] |= {"checkpoint_steps": "often"}
    values["data"] |= {"shard": "x"}
    with pytest.raises(InvalidInput) as refused:
        parse(values)
    assert {fault.where for fault in refused.value.faults} == {"train.checkpoint_steps", "data.shard"}


def test_config_file_is_read_and_invalid_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "mine"\nstorage = "out"\n[data]\nshards = "in"\n[model]\narchitecture = "shapes"\n'
        "[train]\nglobal_batch_size = 8\n"
        '[[phases]]\nname = "64"\nresolution = 64\nsamples = 100\n'
    )
    assert read_config(str(path)).phases[0].samples == 100
    path.write_text("name =")
    with pytest.raises(InvalidInput, match="is not TOML"):
        read_config(str(path))
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_config(str(tmp_path))


def test_a_manifest_comes_back_and_others_are_refused() -> None:
    shard = Shard(name="shard-00000.parquet", rows=3, bytes=99, sha256="ab")
    manifest = Manifest(shards=(shard,), quarantined={"truncated": 2}, about={"source": "x"})
    assert Manifest.from_bytes(manifest.to_bytes(), where="m") == manifest
    assert manifest.rows == 3
    for content in (b"{}", b"[", manifest.to_bytes().replace(b'"version": 1', b'"version": 9')):
        with pytest.raises(InvalidInput, match="is not a manifest"):
            Manifest.from_bytes(content, where="m")


def test_a_field_that_is_misspelled_is_named_with_the_one_that_was_meant() -> None:
    values = json.loads(json.dumps(sdxl_tiny().to_json()))
    values["train"] |= {"global_batch_siz": 3, "zzz": 1}
    with pytest.raises(InvalidInput) as refused:
        parse(values)
    assert [str(fault) for fault in refused.value.faults] == [
        "train.global_batch_siz: unknown field (did you mean global_batch_size?)",
        "train.zzz: unknown field (remove it)",
    ]


def test_buckets_and_shares_of_gpus_that_cannot_be() -> None:
    values = json.loads(json.dumps(sdxl_tiny().to_json()))
    parse({**values, "data": {**values["data"], "bucket_reso_steps": 64}})  # not used without buckets
    values["data"] |= {"enable_bucket": True, "bucket_reso_steps": 64}
    values["encode"] |= {"gpus_per_encoder": -0.5}
    with pytest.raises(InvalidInput) as refused:
        parse(values)
    assert {fault.where for fault in refused.value.faults} == {"data.bucket_reso_steps", "encode.gpus_per_encoder"}
    values["data"] |= {"bucket_reso_steps": 8}
    values["encode"] |= {"gpus_per_encoder": 0.5}
    assert parse(values).encode.gpus_per_encoder == 0.5


def test_a_file_may_begin_with_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('recipe = "shapes"\nstorage = "out"\n[train]\nglobal_batch_size = 8\n')
    config = read_config(str(path))
    assert (config.train.global_batch_size, config.train.snr_gamma) == (8, 5.0)
    assert config.data.shards == "out/shards"
    assert read_config("shapes") == RECIPES["shapes"]()
    path.write_text('recipe = "circles"\n')
    with pytest.raises(InvalidInput, match="'circles' is not known"):
        read_config(str(path))
    with pytest.raises(InvalidInput, match=r"neither a recipe nor a file \(recipes: sd2_base, "):
        read_config(str(tmp_path / "none.toml"))


def test_folders_are_named_whole_for_processes_that_work_elsewhere(tmp_path: Path) -> None:
    here = Path.cwd()
    config = replace(
        sdxl_tiny("work"), encode=Encode(latents="s3://bucket/latents"), data=Data(shards=str(tmp_path / "shards"))
    )
    found = rooted(config)
    assert found.storage == str(here / "work")
    assert (found.data.shards, found.encode.latents) == (str(tmp_path / "shards"), "s3://bucket/latents")
    assert rooted(found) == found
    assert rooted(sdxl_tiny("work")).encode.latents is None


def test_a_folder_of_a_model_is_named_whole_and_a_name_of_the_hub_stays(tmp_path: Path) -> None:
    folder, config = relpath(tmp_path), sdxl_tiny("/work")
    names = [
        rooted(replace(config, model=replace(config.model, pretrained_model_name_or_path=name))).model
        for name in (folder, "somebody/model")
    ]
    found, kept = (each.pretrained_model_name_or_path for each in names)
    assert Path(found or "").resolve() == tmp_path.resolve()
    assert Path(found or "").is_absolute()
    assert kept == "somebody/model"


def faults_of(changes: dict[str, dict[str, object]]) -> set[str]:
    values = json.loads(json.dumps(sdxl_tiny().to_json()))
    for table, fields in changes.items():
        values[table] |= fields
    with pytest.raises(InvalidInput) as refused:
        parse(values)
    return {fault.where for fault in refused.value.faults}


def test_a_wrong_type_does_not_hide_what_else_is_wrong() -> None:
    found = faults_of({"train": {"mixed_precision": "fp16", "ema_start_samples": -1}, "workers": {"trainers": 0}})
    assert found == {"train.mixed_precision", "workers.trainers", "train.ema_start_samples"}


def test_neither_does_a_field_without_a_default() -> None:
    values = {"name": 3, "train": {"max_grad_norm": 0}, "phases": [{"name": "a", "samples": 0}, 7], "seed": "x"}
    with pytest.raises(InvalidInput) as refused:
        parse(values)
    assert {fault.where for fault in refused.value.faults} == {
        "name",
        "seed",
        "storage",
        "data",
        "model",
        "train.global_batch_size",
        "train.max_grad_norm",
        "phases.0.resolution",
        "phases.0.samples",
        "phases.1",
    }
    assert len(refused.value.faults) == 10


def test_config_check_skips_rules_that_rest_on_field_of_wrong_type() -> None:
    assert faults_of({"workers": {"trainers": "two", "min_trainers": 4}}) == {"workers.trainers"}
    assert faults_of({"encode": {"mode": "of-line", "store_text": False}}) == {"encode.mode"}
    assert faults_of({"workers": {"trainers": 2, "min_trainers": 4}}) == {"workers.min_trainers"}


def test_the_options_of_an_ingest_are_told_whole_too() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_ingest({"min_side_px": 0, "rows_per_shard": "many", "caption_columns": ["a", 3]})
    assert {fault.where for fault in refused.value.faults} == {
        "ingest.min_side_px",
        "ingest.rows_per_shard",
        "ingest.caption_columns.1",
    }


def test_offline_without_stored_text_is_refused_before_anything_is_read() -> None:
    assert faults_of({"encode": {"mode": "offline", "store_text": False}}) == {"encode.store_text"}
    values = sdxl_tiny().to_json()
    assert parse({**values, "encode": {"mode": "hybrid", "store_text": False}}).encode.mode == "hybrid"


@pytest.mark.parametrize("parallel", ["fsdp2", "hsdp"])
def test_sharded_weights_are_not_channels_last(parallel: str) -> None:
    assert faults_of({"train": {"channels_last": True, "parallel": parallel}}) == {"train.channels_last"}
    values = sdxl_tiny().to_json()
    assert parse({**values, "train": {**values["train"], "channels_last": True}}).train.channels_last


@pytest.mark.parametrize("modes", [["RGBX"], [], ["RGB", "rgb"]])
def test_modes_of_pictures_that_are_none(modes: list[str]) -> None:
    assert faults_of({"ingest": {"modes": modes}}) == {"ingest.modes"}
    assert parse_ingest({"modes": ["RGB", "L"]}).modes == ("RGB", "L")


@pytest.mark.parametrize("weights", [[], [0, 1], [1, -0.5], [float("nan")], [float("inf"), 1]])
def test_weights_by_which_no_caption_can_be_chosen(weights: list[float]) -> None:
    assert faults_of({"data": {"caption_weights": weights}, "ingest": {"max_captions": 0}}) == {
        "data.caption_weights",
        "ingest.max_captions",
    }


def test_a_table_checks_its_fields_when_it_is_made_and_when_it_is_changed() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        replace(sdxl_tiny().train, global_batch_size=0)
    with pytest.raises(ValidationError, match="Unexpected keyword"):
        Data(shards="x", shard="y")  # type: ignore[call-arg]


def test_config_conflicts_are_reported_beside_faults_of_fields() -> None:
    channels = {"channels_last": True, "parallel": "fsdp2", "max_bad_steps": 0}
    changes = {"train": channels, "evaluate": {"clip": "x"}}
    assert faults_of(changes) == {"train.channels_last", "train.max_bad_steps", "evaluate.clip"}


@pytest.mark.parametrize(
    ("table", "name", "asks", "hint"),
    [
        ("train", "token_routing", 0.5, "every image token takes the whole way; remove it"),
        ("encode", "max_encoders", 4, "the number of encoders does not change during a run; remove it"),
        ("encode", "correct_after_s", 1.0, "the number of encoders does not change during a run; remove it"),
        ("encode", "restart_s", 2.0, "the number of encoders does not change during a run; remove it"),
        ("ingest", "dedupe_hash_distance", 3, "pictures of equal bytes are one, and no others; remove it"),
    ],
)
def test_a_former_field_is_read_over_when_it_asks_for_nothing_and_refused_with_a_hint_otherwise(
    table: str, name: str, asks: float, hint: str
) -> None:
    values = json.loads(json.dumps(sdxl_tiny().to_json()))
    for former, fields in FORMER.items():
        values[former] |= {each: nothing for each, (nothing, _) in fields.items()}
    assert parse(values) == sdxl_tiny()
    values[table][name] = asks
    with pytest.raises(InvalidInput) as refused:
        parse(values)
    (fault,) = refused.value.faults
    assert (fault.where, fault.hint) == (f"{table}.{name}", hint)
    assert fault.message == "is not a field any more"


def test_a_fault_says_what_was_found_and_what_to_do() -> None:
    values = json.loads(json.dumps(sdxl_tiny().to_json()))
    values["train"] |= {"max_bad_steps": 0, "channels_last": True, "parallel": "fsdp2"}
    with pytest.raises(InvalidInput) as refused:
        parse(values)
    told = {fault.where: fault for fault in refused.value.faults}
    assert told["train.max_bad_steps"].message == "input should be greater than or equal to 1; it is 0"
    assert told["train.channels_last"].hint == "leave it out, or set train.parallel to ddp"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"train": {"optimizer": "adamw_8bit", "parallel": "fsdp2"}}, "train.optimizer"),
        ({"train": {"optimizer": "adamw_8bit", "channels_last": True}}, "train.optimizer"),
        ({"train": {"optimizer": "lion"}}, "train.optimizer"),
    ],
)
def test_optimizers_that_cannot_be(changes: dict[str, dict[str, object]], where: str) -> None:
    assert faults_of(changes) == {where}


def test_a_constant_rate_has_no_warm_up() -> None:
    values = json.loads(json.dumps(sdxl_tiny().to_json()))
    values["phases"][1] |= {"lr_scheduler": "constant", "lr_warmup_steps": 3}
    with pytest.raises(InvalidInput, match=r"phases.1.lr_scheduler: constant has no warm-up"):
        parse(values)


@pytest.mark.parametrize(
    ("config", "digest"),
    [
        (sd2_base(), "6f4df0b14220f280b5a3a246fb4dc996aec97c55bcdafb575a6c0a7a0edaf464"),
        (sdxl_tiny(), "f8e5949abcfd98379c40a6a3c70bb8762a94a78f314fb3846df8ff1365c443f4"),
    ],
)
def test_checkpoints_of_before_are_still_of_these_configurations(config: PretrainConfig, digest: str) -> None:
    assert config_digest(config, 2) == digest
    train = replace(config.train, optimizer="muon")
    assert config_digest(replace(config, train=train), 2) != digest
    phases = tuple(replace(each, lr_scheduler="cosine") for each in config.phases)
    assert config_digest(replace(config, phases=phases), 2) != digest
