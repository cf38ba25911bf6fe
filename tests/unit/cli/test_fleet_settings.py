"""The tables of fleets: every fault at once, by its name; and what the rules are given."""

from dataclasses import fields
from pathlib import Path

import pytest
from tests.fixtures.contexts import CountedIds, FinePictures, ManualClock
from tests.fixtures.databases import new_sqlite

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.cli.operate.fleet.open_fleets import open_fleets, own_nodes, work_of
from giornata.cli.settings import load_settings
from giornata.cli.settings.connection import read_invitation
from giornata.cli.settings.fleet_settings import TABLES, ChecksTable, ScalingTable
from giornata.control.access.install import install
from giornata.control.context import Context
from giornata.control.ports.identities import NoIdentities
from giornata.domain.errors import InvalidInput
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.domain.machines.node_checks import NodeThresholds
from giornata.fleets.opening import NodeWork
from giornata.store.database.database import open_store

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def context(tmp_path):
    store, clock = open_store(new_sqlite(tmp_path)), ManualClock()
    blobs = FilesystemBlobs(tmp_path / "blobs", signing_key=b"k" * 32, base_url="http://blobs.invalid", clock=clock)
    context = Context(store=store, blobs=blobs, clock=clock, names=CountedIds(), pictures=FinePictures())
    install(context)
    yield context
    store.close()


def settings_from(tmp_path, text, **flags):
    path = tmp_path / "giornata.toml"
    path.write_text(text)
    return load_settings(path, data=tmp_path, **flags)


def opened(settings, context, *, own=None):
    return open_fleets(settings, context, lambda: "http://here", own=own)


def refused_where(call) -> set[str]:
    with pytest.raises(InvalidInput) as refused:
        call()
    return {fault.where for fault in refused.value.faults}


def test_every_fault_of_a_table_is_named(tmp_path):
    text = """
[fleets.gpu]
driver = "local"
places = 0
knids = ["train"]
[fleets.gpu.scaling]
min_nodes = 4
max_nodes = 3
max_scale_up = 0
schedules = ["moon 08:00-09:00 UTC min=1"]
[fleets.gpu.checks]
min_driver = "new"
[fleets.desk]
kinds = []
"""
    assert refused_where(lambda: settings_from(tmp_path, text)) == {
        "fleets.gpu.places",
        "fleets.gpu.knids",
        "fleets.gpu.scaling.max_nodes",
        "fleets.gpu.scaling.max_scale_up",
        "fleets.gpu.scaling.schedules",
        "fleets.gpu.checks.min_driver",
        "fleets.desk.driver",
        "fleets.desk.kinds",
    }


def test_every_fault_of_drivers_and_their_options_is_named(tmp_path, context):
    text = """
[fleets.a]
driver = "lokal"
[fleets.b]
driver = "local"
[fleets.b.options]
gpus = -1
price = 3
[fleets.c]
driver = "static"
[fleets.c.options]
price_usd_per_hour = "much"
"""
    settings = settings_from(tmp_path, text)
    assert refused_where(lambda: opened(settings, context)) == {
        "fleets.a.driver",
        "fleets.b.options.gpus",
        "fleets.b.options.price",
        "fleets.c.options.price_usd_per_hour",
    }


def test_the_rules_get_what_the_tables_say(tmp_path, context):
    text = """
[fleets.gpu]
driver = "static"
kinds = ["train", "validate"]
places = 4
vram_bytes = 24_000_000_000
[fleets.gpu.scaling]
min_nodes = 1
max_nodes = 8
max_price_usd_per_hour = 0.35
schedules = ["mon-fri 08:00-20:00 Europe/Berlin min=2"]
[fleets.gpu.checks]
min_driver = "550.54"
"""
    fleets = opened(settings_from(tmp_path, text), context)
    governed = fleets.context.fleets["gpu"]
    assert (governed.kinds, governed.places, governed.vram_bytes) == (("train", "validate"), 4, 24_000_000_000)
    assert (governed.scaling.min_nodes, governed.scaling.max_nodes) == (1, 8)
    assert governed.scaling.max_price_micro_usd_per_hour == 350_000
    assert governed.scaling.windows[0].min_nodes == 2
    assert governed.thresholds == NodeThresholds(min_driver="550.54")
    assert fleets.fixed is None


def test_tables_that_say_nothing_are_the_rules_own_defaults():
    assert ScalingTable().policy() == ScalingPolicy()
    assert ChecksTable().thresholds() == NodeThresholds()
    assert {each.name for each in fields(NodeThresholds)} == set(ChecksTable.model_fields)


def test_nodes_of_this_machine_are_a_fleet_of_a_fixed_size_or_one_that_is_scaled(tmp_path, context):
    settings = settings_from(tmp_path, "", kinds=("x-count",), workloads={"x-count": "python count.py"})
    fixed = opened(settings, context, own=range(2, 3))
    assert (fixed.fixed_nodes, fixed.context.fleets) == (2, {})
    scaled = opened(settings, context, own=range(1, 4))
    assert scaled.fixed is None
    assert scaled.context.fleets["local"].scaling.max_nodes == 3
    assert scaled.context.fleets["local"].kinds == ("x-count",)


def test_work_that_no_node_of_a_provider_could_do_is_refused_before_one_is_paid_for(tmp_path, context):
    text = """
[workloads]
x-open = "python open.py"
[fleets.pods]
driver = "kubernetes"
kinds = ["train", "x-count", "x-open"]
[fleets.pods.options]
image = "registry.example/node:1"
[fleets.own]
driver = "kubernetes"
kinds = ["x-count"]
[fleets.salad]
driver = "salad"
kinds = ["trian"]
[fleets.clouds]
driver = "skypilot"
kinds = ["x-count"]
"""
    refused = refused_where(lambda: opened(settings_from(tmp_path, text), context))
    named = {where for where in refused if where.endswith(".kinds")}
    assert named == {"fleets.pods.kinds", "fleets.salad.kinds", "fleets.clouds.kinds"}


def test_nodes_of_a_fleet_are_told_the_kinds_places_and_own_commands_of_its_table(tmp_path):
    text = """
places = 7
[workloads]
x-count = "python count.py"
x-other = "python other.py"
[fleets.gpu]
driver = "local"
kinds = ["pretrain", "x-count"]
places = 3
"""
    settings = settings_from(tmp_path, text)
    work = work_of(settings, settings.fleets["gpu"])
    assert work == NodeWork(kinds=("pretrain", "x-count"), places=3, workloads={"x-count": "python count.py"})


def test_work_that_no_local_node_could_do_is_refused_with_all_other_faults(tmp_path, context):
    text = """
kinds = ["x-mine"]
[workloads]
x-open = "python 'count.py"
[fleets.here]
driver = "local"
kinds = ["train", "x-count", "x-open"]
[fleets.there]
driver = "local"
kinds = ["trian"]
[fleets.elsewhere]
driver = "static"
kinds = ["x-count"]
[fleets.odd]
driver = "lokal"
"""
    settings = settings_from(tmp_path, text)
    always = {"fleets.here.kinds", "fleets.there.kinds", "fleets.odd.driver", "workloads.x-open"}
    assert refused_where(lambda: opened(settings, context)) == always
    assert refused_where(lambda: opened(settings, context, own=range(1))) == always
    assert refused_where(lambda: opened(settings, context, own=range(1, 2))) == always | {"kinds"}
    lame = settings_from(tmp_path, "", workloads={"x-count": " ", "count": "python count.py"})
    assert refused_where(lambda: opened(lame, context, own=range(2))) == {"workloads.x-count", "workloads.count"}


def test_a_server_that_shares_its_database_has_no_nodes_in_its_care(tmp_path, context):
    text = '[fleets.here]\ndriver = "local"\n'
    settings = settings_from(tmp_path, text, database="postgresql://somewhere/giornata")
    assert refused_where(lambda: opened(settings, context, own=range(2))) == {"fleets.here.driver", "max_nodes"}
    assert opened(settings_from(tmp_path, text), context).context.fleets.keys() == {"here"}


def test_every_field_of_the_tables_is_documented_with_a_meaning():
    page = (DOCS / "reference" / "settings.md").read_text()
    for table, model in TABLES.items():
        for name, field in model.model_fields.items():
            assert field.description, f"{table}.{name} has no description"
            assert f"| `{table}.{name}` |" in page


def test_the_example_of_the_guide_is_read(tmp_path, context):
    """The one in docs/how-to/fleets.md, less the drivers that need an extra or a key."""
    guide = (DOCS / "how-to" / "fleets.md").read_text()
    example = guide.partition("```toml\n")[2].partition("```")[0]
    settings = settings_from(tmp_path, example)
    assert len(settings.fleets) >= 2
    assert opened(settings, context).context.fleets.keys() == settings.fleets.keys()


def test_an_invitation_is_a_server_and_a_key():
    invited = read_invitation("https://giornata.example#gk_abc")
    assert (invited.url, invited.key) == ("https://giornata.example", "gk_abc")
    assert read_invitation(str(invited)) == invited


@pytest.mark.parametrize("text", ["https://giornata.example", "https://giornata.example#", "gk_abc", "#gk_abc"])
def test_half_an_invitation_is_refused(text):
    assert refused_where(lambda: read_invitation(text)) == {"--join"}


SALAD = """
[fleets.loras]
driver = "salad"
[fleets.loras.options]
organization = "acme"
project = "loras"
organization_id = "0b6e3d56-63ca-4f7a-a4f5-3b7d5c5f5d10"
image = "registry.example/giornata-node:1"
gpu_classes = ["RTX 4090 (24 GB)"]
"""


def test_a_fleet_on_saladcloud_lets_its_nodes_in_by_their_tokens(tmp_path, context, monkeypatch):
    assert refused_where(lambda: opened(settings_from(tmp_path, SALAD), context)) == {
        "fleets.loras.options.api_key_variable"
    }
    monkeypatch.setenv("SALAD_API_KEY", "key")
    fleets = opened(settings_from(tmp_path, SALAD), context)
    assert not isinstance(fleets.context.identities, NoIdentities)
    fleets.close()
    keyed = SALAD.replace("organization_id", "group_id")
    fleets = opened(settings_from(tmp_path, keyed), context)
    assert isinstance(fleets.context.identities, NoIdentities)
    fleets.close()


AWAY = """
[fleets.away]
driver = "static"
"""


@pytest.mark.parametrize(
    ("text", "flags", "fewest_and_most"),
    [
        ("", {}, (1, 1)),
        ("", {"nodes": 3}, (3, 3)),
        ("", {"max_nodes": 4}, (0, 4)),
        ("", {"nodes": 2, "max_nodes": 4}, (2, 4)),
        (AWAY, {}, (0, 0)),
        (AWAY, {"nodes": 2}, (2, 2)),
        (AWAY, {"max_nodes": 2}, (0, 2)),
        ("nodes = 2\n" + AWAY, {}, (2, 2)),
    ],
)
def test_up_starts_the_nodes_that_somebody_asked_for(tmp_path, text, flags, fewest_and_most):
    own = own_nodes(settings_from(tmp_path, text, **flags))
    assert (own[0], own[-1]) == fewest_and_most


def test_fewest_and_most_nodes_both_count(tmp_path, context):
    settings = settings_from(tmp_path, "", nodes=2, max_nodes=4)
    fleet = opened(settings, context, own=own_nodes(settings)).context.fleets["local"]
    assert (fleet.scaling.min_nodes, fleet.scaling.max_nodes) == (2, 4)
    assert refused_where(lambda: own_nodes(settings_from(tmp_path, "", nodes=3, max_nodes=2))) == {"nodes"}


def test_nodes_in_the_servers_care_are_not_told_the_servers_secrets(tmp_path, context, monkeypatch):
    for name in ("ADMIN_KEY", "SECRETS_KEY", "S3_SECRET_ACCESS_KEY", "STALL_S"):
        monkeypatch.setenv(f"GIORNATA_{name}", "5")
    fleet = opened(settings_from(tmp_path, ""), context, own=range(1, 2)).fixed.fleet
    assert {"GIORNATA_NODE_KEY", "GIORNATA_STALL_S"} <= fleet.environment.keys()
    assert {"GIORNATA_ADMIN_KEY", "GIORNATA_SECRETS_KEY"}.isdisjoint(fleet.environment)
    assert "GIORNATA_S3_SECRET_ACCESS_KEY" not in fleet.environment


def test_earlier_names_in_a_scaling_table_mean_the_same():
    text = ["mon-fri 08:00-20:00 UTC max=9"]
    old = {"idle_to_zero_s": 1, "most_up": 2, "most_down": 3, "pause_after_change_s": 4, "windows": text}
    old |= {"start_within_s": 5, "start_billed_within_s": 6, "usual_start_s": 7, "drain_within_s": 8}
    new = {"idle_timeout_s": 1, "max_scale_up": 2, "max_scale_down": 3, "cooldown_s": 4, "schedules": text}
    new |= {"startup_timeout_s": 5, "billed_startup_timeout_s": 6, "expected_startup_s": 7, "drain_timeout_s": 8}
    assert ScalingTable.model_validate(old) == ScalingTable.model_validate(new)
    assert ScalingTable.model_validate(old).policy().cooldown_s == 4
