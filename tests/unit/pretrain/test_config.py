"""Configurations are checked whole; recipes are sound."""

import json
from pathlib import Path

import pytest

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.manifest import Manifest, Shard
from giornata.pretrain.recipes import RECIPES, read_config, sdxl_tiny
from giornata.protocol.pretraining_checks import load, parse


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


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "mine"\nstorage = "out"\n[data]\nshards = "in"\n[model]\narchitecture = "shapes"\n'
        "[train]\nglobal_batch_size = 8\n"
        '[[phases]]\nname = "64"\nresolution = 64\nsamples = 100\n'
    )
    assert load(path).phases[0].samples == 100
    path.write_text("name =")
    with pytest.raises(InvalidInput, match="is not TOML"):
        load(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(tmp_path / "none.toml")


def test_a_manifest_comes_back_and_others_are_refused() -> None:
    shard = Shard(name="shard-00000.parquet", rows=3, bytes=99, sha256="ab")
    manifest = Manifest(shards=(shard,), quarantined={"truncated": 2}, about={"source": "x"})
    assert Manifest.from_bytes(manifest.to_bytes(), where="m") == manifest
    assert manifest.rows == 3
    for content in (b"{}", b"[", manifest.to_bytes().replace(b'"version": 1', b'"version": 9')):
        with pytest.raises(InvalidInput, match="is not a manifest"):
            Manifest.from_bytes(content, where="m")


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
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_config(str(tmp_path / "none.toml"))
