"""The file that a run is begun with is the one that is planned: every recipe, and the guide's own."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.manifest import Manifest, Shard
from giornata.pretrain.planning.facts import load_facts
from giornata.pretrain.planning.from_config import request_named, request_of_run
from giornata.pretrain.planning.ranking import rank
from giornata.pretrain.planning.report import reasons, verdict
from giornata.pretrain.recipes import RECIPES, sd2_base, shapes
from giornata.protocol.pretraining import Mode

FACTS = load_facts()
GUIDE = Path(__file__).parents[3] / "docs/tutorials/pretraining.md"


def planned(*arguments):
    return CliRunner().invoke(app, ["pretrain", "plan", *arguments])


def on(config, **workers):
    return replace(config, workers=replace(config.workers, **workers))


def ranked(config, **assumed):
    return rank(request_of_run(config, **assumed), FACTS)


def guides_file(folder):
    """The run.toml of the guide, whose commands begin with its plan."""
    found = re.search(r"```toml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    file = folder / "run.toml"
    file.write_text(found[1], encoding="utf-8")
    return file


def shards_of(folder, rows):
    folder.mkdir()
    shard = Shard(name="shard-00000.parquet", rows=rows, bytes=9, sha256="ab")
    (folder / "manifest.json").write_bytes(Manifest(shards=(shard,)).to_bytes())
    return str(folder)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_planned_by_name_and_from_a_file_that_begins_with_it(name, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(f'recipe = "{name}"\nname = "mine"\n')
    for config in (name, str(file)):
        ran = planned(config, "--json")
        assert ran.exit_code == 0, ran.output
        told = json.loads(ran.stdout)
        assert told["samples"] == RECIPES[name]().samples
        assert bool(told["choices"]) == RECIPES[name]().workers.use_gpu


def test_the_guides_file_is_planned(tmp_path):
    ran = planned(str(guides_file(tmp_path)))
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("first: 18,000 samples of shapes, 2 phases\n")
    assert "no GPU" in ran.stdout
    assert "--assume" in ran.stdout


def test_a_run_without_a_gpu_is_priced_on_clusters_that_are_named():
    assert ranked(shapes()).choices == ()
    there = ranked(shapes(), trainers=["1xlambda-8xh100"])
    assert {choice.machines.trainer.name for choice in there.choices} == {"lambda-8xh100"}
    assert not any("no GPU" in text for text in there.left_out)


def test_a_run_of_any_resolution_is_planned():
    config = sd2_base()
    odd = ranked(replace(config, phases=(replace(config.phases[0], resolution=280), config.phases[1])))
    usual = ranked(config)
    assert odd.best.phases[0].images_per_s < usual.best.phases[0].images_per_s
    sizes = FACTS.row_bytes_of("sd2", 280)
    assert (sizes.latent_bytes, sizes.text_bytes) == (2 * 4 * 35**2, FACTS.row_bytes_of("sd2", 256).text_bytes)


def test_the_rows_of_the_shards_are_encoded_once(tmp_path):
    config = sd2_base()
    many = replace(config, data=replace(config.data, shards=shards_of(tmp_path / "shards", 1_000_000)))
    once, each = ranked(many), ranked(config)
    paid = [r.first(lambda choice: choice.mode is Mode.OFFLINE).bill.precompute_usd for r in (once, each)]
    assert paid[0] < paid[1] / 900
    assert any("has 1,000,000 rows: 1,126.4, 1,740.8 passes" in text for text in reasons(once))
    assert any("There are no rows in" in text for text in reasons(each))
    given = ranked(many, dataset_rows=5)
    assert given.request.dataset_rows == 5
    assert not any("rows:" in text for text in reasons(given))


def test_rows_that_cannot_be_counted(tmp_path):
    config = sd2_base("s3://bucket/run")
    assert "not counted from here" in " ".join(request_of_run(config).notes)
    (tmp_path / "manifest.json").write_text("{}")
    broken = replace(config, data=replace(config.data, shards=str(tmp_path)))
    with pytest.raises(InvalidInput, match="is not a manifest"):
        request_of_run(broken)


def test_the_runs_own_trainers_and_mode_are_among_the_choices_and_named():
    ranking = ranked(on(sd2_base(), trainers=16, accelerator_type="H200"))
    mine = ranking.configured
    assert (mine.mode, mine.machines.instances, mine.machines.trainer.short) == (Mode.COLOCATED, 2, "p5en")
    assert "The run as configured, 16 H200 (2 p5en), colocated: ~$" in verdict(ranking)[0]
    assert ranked(on(sd2_base(), accelerator_type=None)).configured is None


def test_the_shipped_recipe_is_the_cheapest_of_its_own_plan():
    ranking = ranked(sd2_base())
    assert ranking.configured is ranking.best
    assert verdict(ranking)[0].startswith(
        "The run as configured is the cheapest: 8 H100 (1 lambda-8xh100), colocated"
    )


def test_trainers_that_do_not_fill_an_instance_are_told():
    some = request_of_run(on(sd2_base(), trainers=12))
    assert some.trainers[0] == "2xp5.48xlarge"
    assert any("4 more trainers would use them" in note for note in some.notes)
    assert not any("more trainers" in note for note in request_of_run(sd2_base()).notes)


def test_the_runs_prices_are_used():
    priced = ranked(on(sd2_base(), trainer_usd_per_h=2.5))
    mine = priced.configured
    assert (mine.machines.gpus, mine.machines.trainer_offer.usd_per_hour) == (8, 2.5)
    assert mine.bill.trainer_usd == pytest.approx(mine.bill.training_hours * 8 * 2.5)
    config = on(sd2_base(), trainer_usd_per_h=2.5, encoder_usd_per_h=0.5)
    with_encoders = replace(config, encode=replace(config.encode, mode=Mode.HYBRID, accelerator_type="A10G"))
    mine = ranked(with_encoders).configured
    assert (mine.machines.encoder.gpu, mine.machines.encoder_offer.usd_per_hour) == ("A10G", 0.5)
    assert any("encoder_usd_per_h is not used" in note for note in request_of_run(config).notes)
    assert not any("is not used" in note for note in request_of_run(with_encoders).notes)


def test_encoders_of_a_kind_without_a_price_are_those_of_its_instance():
    config = sd2_base()
    named = replace(config, encode=replace(config.encode, accelerator_type="A10G"))
    assert request_of_run(named).encoders == ("g5.2xlarge",)
    unknown = replace(config, encode=replace(config.encode, accelerator_type="K80"))
    assert any("'K80'" in note for note in request_of_run(unknown).notes)


def test_too_few_encoders_are_told():
    config = on(sd2_base(), trainer_usd_per_h=2.5, encoder_usd_per_h=0.5)
    online = replace(config.encode, mode=Mode.ONLINE, accelerator_type="A10G")
    said = reasons(ranked(replace(config, encode=replace(online, encoders=8))))
    assert any("At 256 pixels it has 8 encoders and needs" in text for text in said)
    enough = reasons(ranked(replace(config, encode=replace(online, encoders=9999))))
    assert not any("encoders and needs" in text for text in enough)


def test_an_unknown_kind_of_gpu_is_told():
    config = on(sd2_base(), accelerator_type="K80")
    assert any("'K80', of which no speed is known" in note for note in request_of_run(config).notes)
    assert request_of_run(config).trainers == ()


def test_the_table_has_the_number_of_encoders():
    lines = [line.split("\t") for line in planned("sd2_base").stdout.splitlines() if "\t" in line]
    place = lines[0].index("encoders")
    shown = {(row[0], row[2]): row[place] for row in lines[1:25]}
    assert shown["4 p4de", "online"] == "64, 54 g5"
    assert shown["4 p4de", "colocated"] == shown["4 p4de", "offline"] == "–"


def test_a_file_of_a_run_is_read_as_a_run_reads_it(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('recipe = "sd2_base"\n[workers]\ntrainers = 8\nmin_trainers = 8\n')
    assert request_named(str(file)).trainers[0] == "1xlambda-8xh100"
