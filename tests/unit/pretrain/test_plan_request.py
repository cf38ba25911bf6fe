"""A request is checked whole: every fault at once, each with its field and what to do."""

from dataclasses import fields
from pathlib import Path

import pytest

from giornata.domain.errors import InvalidInput
from giornata.pretrain.planning.facts import TrainingRate
from giornata.pretrain.planning.from_config import ASSUMED, request_named
from giornata.pretrain.planning.request import request_of, schedule_of
from giornata.pretrain.recipes import sd2_base
from giornata.protocol.pretraining import Mode

PHASE = {"samples": 1_000_000, "resolution": 256, "global_batch_size": 2048}


def faults(values):
    with pytest.raises(InvalidInput) as refused:
        request_of(values)
    return {fault.where: fault for fault in refused.value.faults}


def test_the_recipe_is_the_seeds_schedule_and_has_no_fault():
    request = request_of(schedule_of(sd2_base()))
    assert [phase.samples for phase in request.phases] == [550_000 * 2048, 850_000 * 2048]
    assert [phase.resolution for phase in request.phases] == [256, 512]
    assert [phase.samples / phase.global_batch_size for phase in request.phases] == [275_000, 425_000]
    assert request_named("sd2_base").phases == request.phases


def test_plain_values_make_a_request():
    request = request_of({"phases": [PHASE], "modes": ["online"], "trainers": ["2xp4d"], "dataset_rows": 1000})
    assert request.modes == (Mode.ONLINE,)
    assert request.rows(request.phases[0]) == 1000
    more = request_of({"phases": [PHASE], "dataset_rows": 10**9})
    assert more.rows(more.phases[0]) == 10**9, "all shards are encoded, whether a phase trains them or not"


def test_every_fault_of_the_values_at_once():
    found = faults(
        {
            "phases": [PHASE | {"samples": 0}, PHASE | {"resolution": "wide"}],
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
    assert all(
        fault.hint or "should " in fault.message or "give at least" in fault.message for fault in found.values()
    )


def test_a_given_rate_is_measured_and_of_the_requests_model_unless_it_says_otherwise():
    row = {"gpu": "H200", "gpus": 8, "resolution": 256, "images_per_s": 9.0}
    mine, others = request_of(
        {"phases": [PHASE], "rates": [row, row | {"source": "a paper", "mark": "published"}]}
    ).rates
    assert (mine.model, mine.source, mine.mark) == ("sd2", "given with the request", "measured")
    assert (others.source, others.mark) == ("a paper", "published")
    assert set(faults({"phases": [PHASE], "rates": [7], "encoder_rates": 5})) == {"rates.0", "encoder_rates"}
    assert set(faults({"phases": [PHASE], "rates": [row | {"mark": "rumor", "model": "sd9"}]})) == {
        "rates.0.mark",
        "rates.0.model",
    }


def test_every_fault_of_the_fields_at_once():
    found = faults({"phases": [{"samples": "many", "resolution": 256}], "color": "red"})
    assert set(found) == {"phases.0.samples", "phases.0.global_batch_size", "color"}


def test_no_phase_and_an_unknown_model():
    assert set(faults({"phases": []})) == {"phases"}
    assert set(faults({"phases": [PHASE], "model": "sd9"})) == {"model"}
    assert set(faults({"phases": [PHASE], "recipe": "sd9"})) == {"recipe"}


def test_plan_assumptions_are_read_from_a_separate_file(tmp_path):
    toml = tmp_path / "prices.toml"
    toml.write_text("storage_months = 2\ndataset_rows = 500\nusd_per_hour = {p4de = 20.0}\n")
    request = request_named("sd2_base", assume=toml)
    assert (request.storage_months, request.usd_per_hour, request.phases) == (
        2,
        {"p4de": 20.0},
        request_named("sd2_base").phases,
    )
    assert request.rows(request.phases[0]) == 500


def test_plan_assumptions_cannot_override_run_and_faults_of_both_files_are_reported(tmp_path):
    run, assumed = tmp_path / "run.toml", tmp_path / "prices.toml"
    run.write_text('recipe = "shapes"\n[train]\ncheckpoint_steps = 0\n')
    assumed.write_text('color = "red"\nmodel = "sd2"\n')
    with pytest.raises(InvalidInput) as refused:
        request_named(str(run), assume=assumed)
    assert [fault.where for fault in refused.value.faults] == [
        "train.checkpoint_steps",
        f"{assumed}: color",
        f"{assumed}: model",
    ]
    assert refused.value.faults[2].message == "belongs to the run's configuration"


@pytest.mark.parametrize(("content", "says"), [(b"phases = [", "is not TOML"), (b"\xff", "is not TOML")])
def test_files_that_cannot_be_read(tmp_path, content, says):
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=says):
        request_named(str(file))
    with pytest.raises(InvalidInput, match=says):
        request_named("sd2_base", assume=file)
    with pytest.raises(InvalidInput, match="cannot be read"):
        request_named("sd2_base", assume=tmp_path)


def test_a_name_that_is_neither_recipe_nor_file():
    with pytest.raises(InvalidInput, match=r"nowhere\.toml is neither a recipe nor a file \(recipes: sd2_base"):
        request_named("nowhere.toml")


def test_the_guide_names_every_field():
    guide = (Path(__file__).parents[3] / "docs/how-to/pretraining-price.md").read_text()
    names = [*ASSUMED, *(each.name for each in fields(TrainingRate))]
    missing = [name for name in names if f"`{name}`" not in guide]
    assert missing == []
