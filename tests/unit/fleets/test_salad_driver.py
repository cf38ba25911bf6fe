"""A fleet on SaladCloud: what it asks of the provider, and what becomes of the instances."""

from typing import Any

import pytest
from tests.fixtures.salad_cloud import SaladCloud
from tests.fixtures.salad_rented import Rented

from giornata.control.ports.fleet import InstanceState, Outdated
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone

GROUP = "/organizations/acme/projects/loras/containers/loras"


@pytest.fixture
def rented() -> Rented:
    return Rented(SaladCloud())


def running(rented: Any) -> set[str]:
    return {each.id for each in rented.group.instances if each.state(rented.cloud.now_s) == "running"}


def grown(rented: Any, fleet: Any, nodes: int) -> list[str]:
    fleet.desired(nodes)
    rented.settle()
    ids = [each.id for each in fleet.list()]
    assert len(ids) == nodes
    return ids


def test_the_group_is_made_when_it_is_first_needed_and_not_before(rented):
    fleet = rented.fleet()
    fleet.desired(0)
    assert rented.cloud.groups == {}
    fleet.desired(2)
    assert rented.group.replicas == 2
    assert rented.cloud.count("POST", "/containers") == 1
    made = rented.group.document
    assert made["container"]["resources"]["gpu_classes"] == ["ed563892-aacd-40f5-80b7-90c9be6c759b"]
    assert made["container"]["environment_variables"]["GIORNATA_URL"] == "https://giornata.example"
    assert made["container"]["environment_variables"]["GIORNATA_FLEET"] == "loras"


def test_d107_a_group_that_is_only_being_deployed_is_stopped_too(rented):
    fleet = rented.fleet()
    fleet.desired(2)
    assert rented.group.status == "deploying"
    fleet.desired(0)
    assert rented.group.status == "stopped"
    asked = len(rented.cloud.asked)
    fleet.desired(0)
    assert rented.cloud.count("POST", "/stop") == 1, "what is stopped is not stopped again"
    assert len(rented.cloud.asked) > asked


def test_d108_the_replicas_are_set_before_the_group_is_started(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 5)
    fleet.desired(0)
    rented.settle()
    fleet.desired(1)
    verbs = [(method, path.rsplit("/", 1)[-1]) for method, path in rented.cloud.asked if method != "GET"]
    assert verbs[-2:] == [("PATCH", "loras"), ("POST", "start")]
    rented.settle()
    assert len(rented.group.instances) == 1, "the old size never comes up"


def test_d44_exactly_those_who_leave_go(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 5)
    leaving = [ids[3], ids[1]]
    fleet.desired(3, leaving=leaving)
    rented.settle()
    assert running(rented) == set(ids) - set(leaving)
    assert rented.group.version == 1, "a replica edit restarts nobody"


def test_d44_the_costs_are_there_before_the_number_falls(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 3)
    first = len(rented.cloud.asked)
    fleet.desired(2, leaving=ids[:1])
    patched = [path.rsplit("/", 1)[-1] for method, path in rented.cloud.asked[first:] if method == "PATCH"]
    assert patched[-1] == "loras"
    assert set(patched[:-1]) == set(ids[1:]), "who leaves has the lowest cost already"


def test_d44_when_the_costs_cannot_be_set_the_number_does_not_fall(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 3)
    rented.cloud.befalls(503, times=5, only=ids[2])
    with pytest.raises(FleetUnavailable):
        fleet.desired(2, leaving=ids[:1])
    assert rented.group.replicas == 3


def test_a_cost_that_is_refused_keeps_the_number_only_where_work_is_at_stake(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 2)
    fleet.desired(4)
    starting = [each.id for each in rented.group.instances if each.id not in ids]
    for instance_id in starting:
        rented.cloud.befalls(400, only=instance_id)
    fleet.desired(2)
    rented.settle()
    assert running(rented) == set(ids)
    rented.cloud.befalls(403, only=ids[1])
    with pytest.raises(FleetRefused):
        fleet.desired(1, leaving=ids[1:])
    assert rented.group.replicas == 2


def test_scale_in_beyond_named_instances_ends_starting_ones_before_running_ones(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 2)
    fleet.desired(4)
    fleet.desired(2)
    rented.settle()
    assert running(rented) == set(ids)


def test_more_and_the_same_touch_no_instance(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 2)
    fleet.desired(2, leaving=ids)
    fleet.desired(3, leaving=ids[:1])
    assert not [path for method, path in rented.cloud.asked if method == "PATCH" and "/instances/" in path]
    assert running(rented) == set(ids)


def test_d85_deletion_costs_stay_within_what_the_provider_takes(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 3)
    fleet.desired(2, leaving=ids[:1])
    costs = [body["deletion_cost"] for body in rented.cloud.bodies if body and "deletion_cost" in body]
    assert costs
    assert all(0 <= cost <= 100_000 for cost in costs)


def test_scale_in_sets_no_deletion_cost_for_instance_that_is_gone(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 3)
    rented.cloud.befalls(404, only=ids[1])
    fleet.desired(2, leaving=ids[:1])
    assert rented.group.replicas == 2


@pytest.mark.parametrize("change", [{"image": "registry.example/giornata-node:2"}, {"env": {"NEW": "1"}}])
def test_changed_settings_restart_running_instances_only_on_renew(rented, change):
    ids = grown(rented, rented.fleet(), 2)
    changed = rented.fleet(**change)
    changed.desired(3)
    changed.desired(2, leaving=ids[:1])
    assert rented.group.version == 1
    assert changed.outdated().settings == ("image" if "image" in change else "env.NEW",)
    changed.renew([])
    assert rented.group.version == 2
    changed.renew([])
    assert rented.group.version == 2, "every change of the container restarts all instances"
    assert changed.outdated() == Outdated()


def test_changed_settings_take_effect_when_stopped_group_starts(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 1)
    assert fleet.outdated() == Outdated()
    fleet.desired(0)
    rented.settle()
    rented.fleet(image="registry.example/giornata-node:2").desired(1)
    assert rented.group.document["container"]["image"] == "registry.example/giornata-node:2"
    fleet.desired(0)
    rented.settle()
    version = rented.group.version
    rented.fleet(image="registry.example/giornata-node:2").desired(1)
    assert rented.group.version == version, "the same settings are no change"


def test_d41_instances_have_ids_of_their_own_beside_their_machines(rented):
    fleet = rented.fleet()
    (instance_id,) = grown(rented, fleet, 1)
    (listed,) = fleet.list()
    assert listed.machine_id == rented.group.instances[0].machine_id != listed.id
    fleet.reallocate(instance_id, reason="slow")
    assert rented.cloud.asked[-1] == (
        "POST",
        f"{GROUP}/instances/{instance_id}/reallocate",
    )
    rented.settle()
    (other,) = fleet.list()
    assert other.machine_id != listed.machine_id, "the machine is excluded"


def test_d41_a_machines_id_finds_its_instance_by_listing(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 2)
    listed = fleet.list()[0]
    fleet.reallocate(listed.machine_id, reason="slow")
    assert listed.machine_id in rented.group.excluded
    assert len(rented.group.excluded) == 1


def test_d42_gone_is_found_out_by_listing(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 2)
    rented.group.interrupt(rented.group.instances[0])
    listings = rented.cloud.count("GET", "/instances")
    with pytest.raises(InstanceGone):
        fleet.reallocate(ids[0], reason="slow")
    assert rented.cloud.count("GET", "/instances") == listings + 1
    assert not rented.group.excluded


def test_d42_one_answer_of_404_is_not_believed_while_the_instance_is_listed(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 1)
    rented.cloud.befalls(404, only="/reallocate")
    with pytest.raises(FleetUnavailable):
        fleet.reallocate(ids[0], reason="slow")
    rented.cloud.befalls(404, only=ids[0])
    with pytest.raises(FleetUnavailable):
        fleet.drain(ids[0])


def test_a_page_that_says_404_is_no_group_that_is_missing(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 1)
    rented.cloud.befalls(404, page=True, times=5, only="/containers")
    with pytest.raises(FleetUnavailable):
        fleet.desired(0)
    fleet.desired(0)
    assert rented.group.status == "stopped"


def test_draining_makes_it_the_first_to_go(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 3)
    fleet.desired(2, leaving=ids[:1])
    rented.settle()
    fleet.drain(ids[2])
    rented.group.resize(1)
    rented.settle()
    assert running(rented) == {ids[1]}


def test_older_payloads_are_read(rented):
    rented.cloud.older = True
    fleet = rented.fleet()
    fleet.desired(2)
    assert {each.state for each in fleet.list()} == {InstanceState.STARTING}
    assert "allocating" in fleet.shortage()
    rented.settle()
    assert {each.id for each in fleet.list()} == running(rented)


def test_instances_come_by_the_published_curve(rented):
    fleet = rented.fleet()
    fleet.desired(100)
    shares = {}
    for minute in range(1, 91):
        rented.cloud.advance(60)
        shares[minute] = len(running(rented))
    assert shares[2] == 0
    assert shares[4] > 0
    assert (45 <= shares[10] <= 55, 75 <= shares[20] <= 85, 85 <= shares[40] <= 95) == (True, True, True)
    assert shares[81] == 100
    assert {each.state for each in fleet.list()} == {InstanceState.RUNNING}


def test_a_zombie_is_not_listed_and_its_replacement_is_another(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 2)
    zombie = rented.group.instances[0]
    rented.group.interrupt(zombie, lives_on=True)
    rented.settle()
    listed = fleet.list()
    assert zombie.id not in {each.id for each in listed}
    assert zombie.machine_id not in {each.machine_id for each in listed}
    assert len(listed) == 2
    assert ids[1] in {each.id for each in listed}


def test_preempted_instance_comes_back_with_another_id(rented):
    fleet = rented.fleet()
    ids = grown(rented, fleet, 2)
    for each in list(rented.group.instances):
        rented.group.interrupt(each, why="Priority")
    assert {each.state for each in fleet.list()} == {InstanceState.STARTING}
    assert "Priority" in fleet.shortage()
    rented.settle()
    assert not {each.id for each in fleet.list()} & set(ids)


def test_billing_counts_only_running_time(rented):
    fleet = rented.fleet()
    fleet.desired(1)
    starts_s = rented.group.instances[0].runs_s - rented.cloud.now_s
    rented.cloud.advance(starts_s)
    assert rented.group.billed_s == 0
    rented.cloud.advance(100)
    fleet.desired(0)
    rented.settle()
    assert rented.group.billed_s == pytest.approx(100)


def test_shortage_says_why_they_do_not_come_and_nothing_when_they_do(rented):
    rented.cloud.most_machines = 1
    fleet = rented.fleet()
    assert fleet.shortage() == ""
    fleet.desired(2)
    rented.settle()
    said = fleet.shortage()
    assert "1 of 2 instances run" in said
    assert "3 free machines for the priority batch" in said
    fleet.desired(1)
    rented.settle()
    assert fleet.shortage() == ""


def test_d110_a_group_that_somebody_deleted_is_made_again(rented):
    fleet = rented.fleet()
    grown(rented, fleet, 2)
    rented.cloud.groups.clear()
    assert fleet.list() == []
    fleet.desired(1)
    assert rented.group.replicas == 1
