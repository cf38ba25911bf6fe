"""A fleet on SaladCloud that is larger than one container group can be."""

from typing import Any

import httpx
import pytest
from tests.fixtures.salad_cloud import SaladCloud
from tests.fixtures.salad_rented import Rented

from giornata.control.ports.fleet import Outdated
from giornata.domain.errors import FleetRefused, FleetUnavailable, InvalidInput
from giornata.fleets.salad.container_groups import group_name, group_number

CHANGED = "registry.example/giornata-node:2"


@pytest.fixture
def rented() -> Rented:
    """Groups of at most two replicas."""
    return Rented(SaladCloud(), most_each=2)


def sizes(rented: Any) -> dict[str, int]:
    """Replicas in use by group."""
    return {name: group.in_use for name, group in sorted(rented.cloud.groups.items())}


def machines_of(rented: Any, name: str) -> set[str]:
    return {each.id for each in rented.cloud.groups[name].present()}


def grown(rented: Any, fleet: Any, nodes: int) -> set[str]:
    fleet.desired(nodes)
    rented.settle()
    found = {each.id for each in fleet.list()}
    assert len(found) == nodes
    return found


def test_more_than_500_nodes_become_several_groups():
    rented = Rented(SaladCloud())
    rented.cloud.quotas["container_replicas_quota"] = 2000
    fleet = rented.fleet()
    fleet.desired(520)
    assert sizes(rented) == {"loras": 500, "loras-group-2": 20}
    listed = fleet.list()
    assert len(listed) == 520
    assert len({each.machine_id for each in listed}) == 520


def test_a_fleet_that_fits_into_one_group_has_one(rented):
    rented.fleet().desired(2)
    assert sizes(rented) == {"loras": 2}


def test_growth_disturbs_no_group_and_fills_those_that_run_first(rented):
    fleet = rented.fleet()
    first = grown(rented, fleet, 3)
    assert sizes(rented) == {"loras": 2, "loras-group-2": 1}
    assert first < grown(rented, fleet, 5)
    assert sizes(rented) == {"loras": 2, "loras-group-2": 2, "loras-group-3": 1}
    assert {group.version for group in rented.cloud.groups.values()} == {1}


def test_leaving_instances_are_removed_from_whichever_group_holds_them(rented):
    fleet = rented.fleet()
    all_of_them = grown(rented, fleet, 5)
    leaving = [min(machines_of(rented, "loras")), *machines_of(rented, "loras-group-3")]
    fleet.desired(3, leaving=leaving)
    rented.settle()
    assert {each.id for each in fleet.list()} == all_of_them - set(leaving)
    assert sizes(rented) == {"loras": 1, "loras-group-2": 2, "loras-group-3": 0}


def test_deletion_costs_are_set_only_in_groups_that_shrink(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 4)
    fleet.desired(3, leaving=[min(machines_of(rented, "loras"))])
    costs = [path for method, path in rented.cloud.asked if method == "PATCH" and "/instances/" in path]
    assert costs
    assert all("/containers/loras/instances/" in path for path in costs)


def test_a_repeat_with_the_same_leaving_ends_nobody_else(rented):
    fleet = rented.fleet()
    all_of_them = grown(rented, fleet, 4)
    leaving = [min(machines_of(rented, "loras"))]
    fleet.desired(3, leaving=leaving)
    fleet.desired(3, leaving=leaving)
    rented.settle()
    assert {each.id for each in fleet.list()} == all_of_them - set(leaving)


def test_an_empty_group_is_stopped_at_once_and_removed_later_but_the_first_stays(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 4)
    fleet.desired(2, leaving=sorted(machines_of(rented, "loras-group-2")))
    assert rented.cloud.groups["loras-group-2"].status == "stopped"
    rented.settle()
    fleet.desired(1)
    assert sizes(rented) == {"loras": 1}
    fleet.desired(0)
    fleet.desired(0)
    assert sizes(rented) == {"loras": 0}


def test_a_group_is_removed_only_when_it_has_the_highest_number(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 6)
    fleet.desired(4, leaving=sorted(machines_of(rented, "loras-group-2")))
    rented.settle()
    fleet.desired(4)
    assert sizes(rented) == {"loras": 2, "loras-group-2": 0, "loras-group-3": 2}
    assert len(grown(rented, fleet, 6)) == 6
    assert sizes(rented) == {"loras": 2, "loras-group-2": 2, "loras-group-3": 2}


def test_a_group_that_is_needed_again_is_not_removed(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 4)
    fleet.desired(2, leaving=sorted(machines_of(rented, "loras-group-2")))
    rented.settle()
    fleet.desired(3)
    assert rented.cloud.count("DELETE", "") == 0
    assert sizes(rented) == {"loras": 2, "loras-group-2": 1}


def test_a_provider_that_does_not_remove_a_group_keeps_nobody_from_scaling(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 4)
    fleet.desired(2, leaving=sorted(machines_of(rented, "loras-group-2")))
    rented.settle()
    rented.cloud.befalls(403, only="/loras-group-2")
    fleet.desired(1)
    assert sizes(rented) == {"loras": 1, "loras-group-2": 0}


def test_groups_that_all_go_are_stopped_whole(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 5)
    fleet.desired(0)
    assert set(sizes(rented).values()) == {0}
    rented.settle()
    assert fleet.list() == []


@pytest.mark.parametrize(
    ("before", "nodes", "method", "only"),
    [
        (1, 6, "POST", "/containers"),
        (6, 1, "POST", "/loras-group-2/stop"),
        (6, 0, "POST", "/loras-group-3/stop"),
        (4, 3, "PATCH", "/loras-group-2"),
    ],
)
@pytest.mark.parametrize("done", [False, True], ids=["not done", "reply lost"])
def test_interrupted_scaling_is_finished_by_the_next_server(rented, before, nodes, method, only, done):
    grown(rented, rented.fleet(), before)
    rented.cloud.befalls(503, times=5, only=only, method=method, done=done)
    with pytest.raises(FleetUnavailable):
        rented.fleet().desired(nodes)
    rented.fleet().desired(nodes)
    assert sum(sizes(rented).values()) == nodes
    rented.settle()
    assert len(rented.fleet().list()) == nodes


def test_groups_made_by_another_server_are_listed(rented):
    grown(rented, rented.fleet(), 5)
    assert len(rented.fleet().list()) == 5


def test_reallocate_and_drain_reach_the_group_of_the_instance(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 4)
    chosen = min(machines_of(rented, "loras-group-2"))
    asked = len(rented.cloud.asked)
    fleet.drain(chosen)
    assert len(rented.cloud.asked) == asked + 1, "the group is known from the listing"
    fresh = rented.fleet()
    fresh.drain(chosen)
    fresh.reallocate(chosen, reason="slow")
    assert len(rented.cloud.groups["loras-group-2"].excluded) == 1
    assert not rented.cloud.groups["loras"].excluded
    machine = next(each.machine_id for each in rented.cloud.groups["loras-group-2"].present())
    fresh.reallocate(machine, reason="slow")
    assert machine in rented.cloud.groups["loras-group-2"].excluded


def test_changed_settings_make_all_groups_outdated_and_renew_updates_all(rented):
    first = grown(rented, rented.fleet(), 3)
    changed = rented.fleet(image=CHANGED)
    assert changed.outdated() == Outdated(settings=("image",), instances=frozenset(first))
    more = grown(rented, changed, 5)
    assert changed.outdated().instances == first | machines_of(rented, "loras-group-2"), "the third group is new"
    assert first < more
    changed.renew([])
    assert changed.outdated() == Outdated()
    assert {name: group.version for name, group in rented.cloud.groups.items()} == {
        "loras": 2,
        "loras-group-2": 2,
        "loras-group-3": 1,
    }


def test_a_group_that_starts_from_rest_has_the_settings_of_then(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 4)
    fleet.desired(0)
    rented.settle()
    grown(rented, rented.fleet(image=CHANGED), 3)
    assert {group.document["container"]["image"] for group in rented.cloud.groups.values()} == {CHANGED}


def test_renamed_fleet_makes_new_groups_and_leaves_old_ones_alone(rented):
    old = grown(rented, rented.fleet(), 3)
    renamed = rented.fleet(group="night")
    new = grown(rented, renamed, 3)
    assert not old & new
    assert sizes(rented) == {"loras": 2, "loras-group-2": 1, "night": 2, "night-group-2": 1}


def test_foreign_group_with_name_of_a_fleet_group_is_left_alone(rented):
    Rented(rented.cloud).fleet("night").desired(1)
    theirs = rented.cloud.groups.pop("night")
    theirs.name = "loras-group-2"
    rented.cloud.groups["loras-group-2"] = theirs
    fleet = rented.fleet()
    grown(rented, fleet, 3)
    assert sizes(rented) == {"loras": 2, "loras-group-2": 1, "loras-group-3": 1}
    fleet.desired(0)
    fleet.desired(0)
    assert sizes(rented) == {"loras": 0, "loras-group-2": 1}
    with pytest.raises(FleetRefused, match=f"0 to {2 * 19}"):
        fleet.desired(39)


def test_a_project_with_more_groups_than_one_answer_has_hides_none_of_the_fleets(rented):
    for number in range(100):
        Rented(rented.cloud).fleet(f"other-{number}").desired(1)
        rented.cloud.advance(60)
    rented.cloud.quotas["container_replicas_quota"] = 1000
    fleet = rented.fleet()
    ids = grown(rented, fleet, 5)
    fleet.desired(4, leaving=sorted(ids)[:1])
    rented.settle()
    assert {each.id for each in rented.fleet().list()} == ids - set(sorted(ids)[:1])


@pytest.mark.parametrize("body", [{}, {"items": None}, {"items": ["loras"]}, []])
def test_a_list_of_groups_is_whole_or_an_error(rented, body):
    fleet = rented.fleet()
    fleet.calls.client.http._transport = httpx.MockTransport(lambda _: httpx.Response(200, json=body))
    with pytest.raises(FleetUnavailable):
        fleet.list()
    with pytest.raises(FleetUnavailable):
        fleet.desired(1)


def test_a_shortage_speaks_of_all_groups(rented):
    rented.cloud.most_machines = 3
    fleet = rented.fleet()
    fleet.desired(5)
    rented.settle()
    assert "3 of 5 instances run" in fleet.shortage()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("loras", 1),
        ("loras-group-2", 2),
        ("loras-group-20", 20),
        ("loras-group-1", None),
        ("loras-group-02", None),
        ("loras-group-21", None),
        ("loras-group-2x", None),
        ("loras-2", None),
        ("other", None),
        (None, None),
    ],
)
def test_a_name_says_which_group_it_is(name, number):
    assert group_number("loras", name) == number
    if number is not None:
        assert group_name("loras", number) == name


@pytest.mark.parametrize("name", ["loras-group-2", "loras-group-20"])
def test_no_fleet_begins_with_a_name_that_is_kept_for_a_further_group(rented, name):
    for fleet, options in ((name, {}), ("night", {"group": name})):
        with pytest.raises(InvalidInput) as caught:
            rented.fleet(fleet, **options)
        assert "does not end in -group-2 to -group-20" in caught.value.faults[0].hint
    assert rented.fleet("loras-group-21").group == "loras-group-21"
