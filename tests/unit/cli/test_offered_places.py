"""`--places` goes from `giornata up` to its nodes, and from a node to its engine."""

from pathlib import Path

import pytest

from giornata.agent.settings import engine_command
from giornata.cli.operate.fleet.node import agent_settings_of
from giornata.cli.operate.fleet.open_fleets import _table_of_machine, work_of
from giornata.cli.settings import load_settings
from giornata.domain.errors import InvalidInput
from giornata.engine.__main__ import parse
from giornata.fleets.opening import NodeWork


def test_the_nodes_of_up_are_told(tmp_path: Path) -> None:
    settings = load_settings(data=tmp_path, places=3, kinds=("x-count", "train"), workloads={"x-count": "count it"})
    work = work_of(settings, _table_of_machine(settings, range(1, 2)))
    assert work == NodeWork(kinds=("x-count", "train"), places=3, workloads={"x-count": "count it"})


def test_a_node_tells_its_engine_and_bounds_itself(tmp_path: Path) -> None:
    own = {"places": 3, "join_for_s": 7.0, "max_pictures_per_lease": 5}
    own |= {"host_model_bytes": 123, "compile": "on"}
    given = load_settings(**own, data=tmp_path, url="http://server", node_key="gk", machine_id="m", workloads={})
    settings = agent_settings_of(given)
    assert (settings.places, settings.join_for_s, settings.max_pictures) == (3, 7.0, 5)
    (command,) = set(settings.engine_commands().values())
    asked = parse(command[3:])
    assert (asked.places, asked.host_model_bytes, asked.compile) == (3, 123, "on")


def test_a_node_says_which_instance_it_is(tmp_path: Path) -> None:
    given = load_settings(data=tmp_path, url="http://server", node_key="gk", machine_id="m", instance_id="pod/a-1")
    assert agent_settings_of(given).instance_id == "pod/a-1"
    with pytest.raises(InvalidInput):
        load_settings(instance_id="no such name")


def test_places_default_to_one_in_settings_and_engine_command() -> None:
    assert load_settings().places == 1
    assert parse(engine_command(("train",), threads=1, device="cpu")[3:]).places == 1
