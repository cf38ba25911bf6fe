"""A request is checked whole: every fault at once, each with its field and what to do."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from giornata.domain.errors import InvalidInput
from giornata.pretrain.planning.facts import load_facts
from giornata.pretrain.planning.reading import request_named, request_of, request_of_run
from giornata.pretrain.planning.request import (
    GivenEncoderRate,
    GivenModel,
    GivenRate,
    PlanPhase,
    PlanRequest,
    faults_of,
    sd2_base,
)
from giornata.pretrain.recipes import RECIPES as RUNS
from giornata.protocol.pretraining import Mode

PHASE = {"samples": 1_000_000, "resolution": 256, "global_batch_size": 2048}


def faults(values):
    with pytest.raises(InvalidInput) as refused:
        request_of(values)
    return {fault.where: fault for fault in refused.value.faults}


def test_the_recipe_is_the_seeds_schedule_and_has_no_fault():
    request = sd2_base()
    assert [phase.samples for phase in request.phases] == [550_000 * 2048, 850_000 * 2048]
    assert [phase.resolution for phase in request.phases] == [256, 512]
    assert [phase.samples / phase.global_batch_size for phase in request.phases] == [275_000, 425_000]
    assert faults_of(request, load_facts()) == []
    assert request_named("sd2_base") == request


def test_plain_values_make_a_request():
    request = request_of({"phases": [PHASE], "modes": ["online"], "trainers": ["2xp4d"], "dataset_rows": 1000})
    assert request.modes == (Mode.ONLINE,)
    assert request.rows(request.phases[0]) == 1000
    assert request_of({"phases": [PHASE], "dataset_rows": 10**9}).rows(request.phases[0]) == 1_000_000


def test_every_fault_of_the_values_at_once():
    found = faults(
        {
            "phases": [PHASE | {"samples": 0}, PHASE | {"resolution": 300}],
            "trainers": ["four p4de", "4xp9"],
            "encoders": ["same", "g9"],
            "prices": "1999",
            "trainer_term": "stolen",
            "headroom": 0.5,
            "availability": 0,
            "storage_months": -1,
            "encoding_instances": 0,
            "dataset_rows": 0,
            "usd_per_hour": {"p4de": -1, "p9": 1},
            "rates": [{"gpu": "A9", "gpus": 0, "resolution": 256, "images_per_s": float(-1)}],
            "modes": [],
        }
    )
    assert set(found) == {
        "phases.0.samples",
        "phases.1.resolution",
        "trainers.0",
        "trainers.1",
        "encoders.1",
        "prices",
        "trainer_term",
        "headroom",
        "availability",
        "storage_months",
        "encoding_instances",
        "dataset_rows",
        "usd_per_hour.p4de",
        "usd_per_hour.p9",
        "rates.0.gpu",
        "rates.0.gpus",
        "rates.0.images_per_s",
        "modes",
    }
    assert all(fault.hint for fault in found.values())
    assert "[[models]]" in found["phases.1.resolution"].hint


def test_every_fault_of_the_fields_at_once():
    found = faults({"phases": [{"samples": "many", "resolution": 256}], "colour": "red"})
    assert set(found) == {"phases.0.samples", "phases.0.global_batch_size", "colour"}


def test_no_phase_and_an_unknown_model():
    assert set(faults({"phases": []})) == {"phases"}
    assert set(faults({"phases": [PHASE], "model": "sd9"})) == {"model"}
    assert set(faults({"recipe": "sd9"})) == {"recipe"}


def test_a_model_that_the_facts_do_not_know_can_be_described():
    described = {
        "resolution": 300,
        "train_gflop": 100.0,
        "vae_gflop": 50.0,
        "text_gflop": 5.0,
        "latent_bytes": 1000,
        "text_bytes": 2000,
    }
    phase = PHASE | {"resolution": 300}
    assert request_of({"phases": [phase], "model": "mine", "models": [described]}).model == "mine"
    wrong = described | {"train_gflop": 0.0}
    assert set(faults({"phases": [phase], "model": "mine", "models": [wrong]})) == {"models.0.train_gflop"}


def test_files(tmp_path):
    toml = tmp_path / "plan.toml"
    toml.write_text('recipe = "sd2_base"\nstorage_months = 2\nusd_per_hour = {p4de = 20.0}\n')
    request = request_named(str(toml))
    assert (request.storage_months, request.usd_per_hour, request.phases) == (2, {"p4de": 20.0}, sd2_base().phases)
    as_json = tmp_path / "plan.json"
    as_json.write_text(json.dumps({"phases": [PHASE]}))
    assert request_named(str(as_json)).samples == 1_000_000


def test_the_file_of_a_run_is_planned(tmp_path):
    run = RUNS["sd2_base"]().to_json()
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run))
    request = request_named(str(file))
    assert (request.name, request.phases) == ("sd2-base", sd2_base().phases)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [("a.toml", "phases = [", "is not TOML"), ("a.json", "{", "is not JSON"), ("b.json", "[]", "no table")],
)
def test_files_that_cannot_be_read(tmp_path, name, text, says):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidInput, match=says):
        request_named(str(file))


def test_a_name_that_is_neither_recipe_nor_file():
    with pytest.raises(InvalidInput, match=r"nowhere\.toml is no recipe and no file \(recipes: sd2_base"):
        request_named("nowhere.toml")


def test_the_guide_names_every_field():
    guide = (Path(__file__).parents[3] / "docs/guides/pretraining-price.md").read_text()
    kinds = (PlanRequest, PlanPhase, GivenRate, GivenEncoderRate, GivenModel)
    missing = [each.name for kind in kinds for each in fields(kind) if f"`{each.name}`" not in guide]
    assert missing == []


def test_a_runs_configuration_is_planned_with_its_schedule():
    run = RUNS["sd2_base"]()
    request = request_of_run(run, storage_months=0.5)
    assert (request.phases, request.storage_months) == (sd2_base().phases, 0.5)
    with pytest.raises(InvalidInput, match="no FLOPs are known of 'shapes'"):
        request_of_run(RUNS["shapes"]())
