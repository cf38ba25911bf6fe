"""Machines that joined by themselves."""

import pytest

from giornata.control.ports.fleet import Instance, InstanceState
from giornata.domain.errors import FleetRefused, InstanceGone
from giornata.fleets.opening import FleetDependencies, open_driver, read_options


@pytest.fixture
def seen() -> dict[str, list[Instance]]:
    return {"desk": [Instance(id="a", state=InstanceState.RUNNING, machine_id="m")]}


@pytest.fixture
def fleet(seen, tmp_path):
    module = open_driver("static", where="fleets.desk")
    dependencies = FleetDependencies(
        server_url=lambda: "https://here",
        node_key=lambda: "gk_x",
        data=tmp_path,
        environment={},
        now_ms=lambda: 0,
        seen=lambda name: seen[name],
    )
    options = read_options(module, {"price_usd_per_hour": 0.25}, where="fleets.desk.options")
    return module.open_fleet("desk", options, dependencies)


def test_static_fleet_lists_machines_that_were_seen(fleet, seen):
    assert [each.id for each in fleet.list()] == ["a"]
    seen["desk"].clear()
    assert list(fleet.list()) == []


def test_no_more_can_be_had_than_there_are_and_it_is_said(fleet):
    fleet.desired(1)
    fleet.desired(0, leaving=["a"])
    assert [each.id for each in fleet.list()] == ["a"], "nobody ends somebody's own machine"
    with pytest.raises(FleetRefused, match="start giornata node on another"):
        fleet.desired(2)
    assert (fleet.limits.most_nodes, fleet.limits.gives_nodes) == (0, False)


def test_static_fleet_refuses_reallocation_and_unknown_instances(fleet):
    with pytest.raises(FleetRefused):
        fleet.reallocate("a", reason="a test")
    with pytest.raises(InstanceGone):
        fleet.reallocate("b", reason="a test")
    fleet.drain("a")
    with pytest.raises(InstanceGone):
        fleet.drain("b")


def test_the_price_is_what_the_settings_say(fleet):
    assert (fleet.price().micro_usd_per_hour, fleet.price().source) == (250_000, "settings")
