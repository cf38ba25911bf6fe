"""With every driver a node is told what the fleet's table says of nodes: what plans them counts on the table.

A driver whose nodes keep their settings for longer than the server's process has `change_work(work)`: the same fleet
as after a restart of the server with another table.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.contract.fleets.test_fleets import raised, settled
from tests.contract.fleets.under_test import WORK

from giornata.cli.settings.fleet_settings import FleetTable
from giornata.domain.errors import FleetRefused

# What a node makes of the variables that it was started with, by the code of `giornata node`.
READ = """
import json, os
from giornata.agent.machine.instance_metadata import place_in
from giornata.cli.operate.fleet.node import agent_settings_of
from giornata.cli.settings import load_settings
node = agent_settings_of(load_settings(), place_in(os.environ))
names = ("url", "key", "fleet", "instance_id", "machine_id", "kinds", "places", "workloads")
print(json.dumps({name: getattr(node, name) for name in names}))
"""
OF_NODES = {"kinds", "places"}
OF_THE_SERVER = {"driver", "vram_bytes", "scaling", "checks", "options", "audit_share"}


def test_every_setting_of_a_fleet_is_a_nodes_or_the_servers():
    assert set(FleetTable.model_fields) == OF_NODES | OF_THE_SERVER, "what nodes have to know is tested below"


def test_fleet_work_settings_reach_the_node(renting, tmp_path):
    (only,) = raised(renting, 1).values()
    # Paths are not of the fleet; a folder without giornata.toml.
    told = dict(renting.told()[only.id]) | {"GIORNATA_DATA": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", READ], env=told, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    node = json.loads(done.stdout)
    assert tuple(node["kinds"]) == WORK.kinds
    assert node["places"] == WORK.places
    assert node["workloads"] == {"x-count": ["python", "count.py", "--to", "9 9"]}
    assert node["fleet"] == renting.name
    assert (node["instance_id"], node["machine_id"]) == (only.id, only.machine_id)
    assert node["url"] == "https://giornata.example"
    assert node["key"]


def test_no_further_node_comes_for_the_work_of_before_when_the_table_has_changed(renting):
    """What plans them counts on the table."""
    if (change_work := getattr(renting, "change_work", None)) is None:
        pytest.skip("nodes of this provider start anew with the server")
    first = raised(renting, 2)
    change_work(replace(WORK, kinds=("train", "x-count"), places=4))
    renting.fleet.desired(2)
    renting.fleet.desired(1)
    try:
        renting.fleet.desired(3)
    except FleetRefused as refused:
        assert f"giornata fleets roll {renting.name}" in str(refused)
        assert set(settled(renting)) < set(first), "nobody was disturbed, and nobody came"
        renting.fleet.renew(sorted(first))
        renting.settle()
        renting.fleet.desired(3)
    renting.settle()
    new = {each: told for each, told in renting.told().items() if each not in first}
    assert len(new) >= 2
    assert {told["GIORNATA_KINDS"] for told in new.values()} == {'["train", "x-count"]'}
    assert {told["GIORNATA_PLACES"] for told in new.values()} == {"4"}


def test_a_table_that_asks_less_of_nodes_is_no_reason_to_wait(renting):
    if (change_work := getattr(renting, "change_work", None)) is None:
        pytest.skip("nodes of this provider start anew with the server")
    first = raised(renting, 1)
    change_work(replace(WORK, kinds=("x-count",), places=1))
    assert set(first) < set(raised(renting, 2))
