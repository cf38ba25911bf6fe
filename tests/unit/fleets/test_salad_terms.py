"""A fleet on SaladCloud: what its group is made of, what it costs, and what is refused."""

import json

import pytest
from tests.fixtures.salad_cloud import SaladCloud
from tests.fixtures.salad_documents import RTX_3090, RTX_4090
from tests.fixtures.salad_rented import Rented

from giornata.domain.errors import FleetRefused, InvalidInput
from giornata.fleets.opening import NodeWork
from giornata.fleets.salad.translation import instance_of

BOTH = ["RTX 4090 (24 GB)", RTX_3090]


@pytest.fixture
def rented() -> Rented:
    return Rented(SaladCloud())


def test_all_salad_options_reach_the_container_group_request(rented):
    rented.environment["SALAD_REGISTRY_PASSWORD"] = "hush"
    fleet = rented.fleet(
        command=["giornata", "node"],
        country_codes=["no", "us"],
        cpu=8,
        memory_mb=32_768,
        shm_mb=128,
        priority="high",
        env={"HF_HOME": "/models"},
        registry={"kind": "docker_hub", "username": "somebody"},
        restart_policy="on_failure",
        image_caching=False,
        storage_bytes=2**31,
    )
    fleet.desired(1)
    made, container = rented.group.document, rented.group.document["container"]
    assert made["country_codes"] == ["no", "us"]
    assert made["restart_policy"] == "on_failure"
    assert container["command"] == ["giornata", "node"]
    assert container["resources"] | {"gpu_classes": []} == {
        "cpu": 8,
        "memory": 32_768,
        "shm_size": 128,
        "storage_amount": 2**31,
        "gpu_classes": [],
    }
    assert (container["priority"], container["image_caching"]) == ("high", False)
    assert container["registry_authentication"] == {
        "docker_hub": {"username": "somebody", "personal_access_token": "hush"}
    }
    assert container["environment_variables"]["HF_HOME"] == "/models"


@pytest.mark.parametrize(
    ("organization_id", "carries"), [(None, True), ("0b6e3d56-63ca-4f7a-a4f5-3b7d5c5f5d10", False)]
)
def test_nodes_carry_no_key_when_they_can_prove_who_they_are(rented, organization_id, carries):
    rented.fleet(organization_id=organization_id).desired(1)
    env = rented.group.document["container"]["environment_variables"]
    assert ("GIORNATA_NODE_KEY" in env) is carries


def test_the_price_is_the_dearest_of_the_classes_at_the_priority(rented):
    both = ["RTX 4090 (24 GB)", "a5db5c50-cbcb-4596-ae80-6a0c8090d80f"]
    assert rented.fleet().price().micro_usd_per_hour == 160_000
    assert rented.fleet(gpu_classes=both, priority="low").price().micro_usd_per_hour == 204_000
    assert rented.fleet(gpu_classes=both[1:], priority="low").price().micro_usd_per_hour == 155_000
    more = rented.fleet(price_beside_gpu_usd_per_hour=0.032).price()
    assert (more.micro_usd_per_hour, more.source) == (192_000, "provider")
    own = rented.fleet(price_usd_per_hour=0.324).price()
    assert (own.micro_usd_per_hour, own.source) == (324_000, "settings")


def test_each_instance_has_the_price_of_its_gpu_class_as_the_system_log_says(rented):
    fleet = rented.fleet(gpu_classes=BOTH, price_beside_gpu_usd_per_hour=0.01)
    assert fleet.prices() == {"RTX 4090 (24 GB)": 170_000, "RTX 3090 (24 GB)": 140_000}
    fleet.desired(6)
    rented.settle()
    said = {RTX_4090: "RTX 4090 (24 GB)", RTX_3090: "RTX 3090 (24 GB)"}
    expected = {each.id: said[each.gpu_class] for each in rented.group.instances}
    assert len(set(expected.values())) == 2
    assert {each.id: each.offer for each in fleet.list()} == expected
    assert {each.id: each.offer for each in fleet.list()} == expected
    assert rented.cloud.count("GET", "/system-logs") == 1, "asked once, while a class is not known"


def test_a_class_that_the_log_does_not_say_is_asked_for_once_a_minute(rented):
    fleet = rented.fleet(gpu_classes=BOTH)
    fleet.desired(2)
    rented.settle()
    rented.group.events.clear()
    for _ in range(4):
        assert {each.offer for each in fleet.list()} == {""}
        rented.cloud.advance(20)
    assert rented.cloud.count("GET", "/system-logs") == 2


@pytest.mark.parametrize("options", [{}, {"gpu_classes": BOTH, "price_usd_per_hour": 0.3}])
def test_uniform_price_of_instances_reads_no_system_logs(rented, options):
    fleet = rented.fleet(**options)
    fleet.desired(2)
    rented.settle()
    assert {each.offer for each in fleet.list()} == {""}
    assert rented.cloud.count("GET", "/system-logs") == 0
    assert len(fleet.prices()) == (0 if options else 1)


def test_an_instance_runs_since_when_it_last_changed_its_state(rented):
    fleet = rented.fleet()
    fleet.desired(2)
    rented.settle()
    runs_ms = {each.id: round(each.runs_s * 1000) for each in rented.group.instances}
    assert {each.id: each.running_since_ms for each in fleet.list()} == pytest.approx(runs_ms, abs=1)
    row = {"id": "i", "state": "running"}
    assert instance_of(row | {"update_time": "2026-11-22T10:00:00.1234567Z"}).running_since_ms == 1_795_341_600_123
    assert instance_of(row | {"update_time": "yesterday"}).running_since_ms is None
    assert instance_of(row | {"update_time": "2026-11-22T10:00:00"}).running_since_ms is None, "of no time zone"
    assert instance_of(row).running_since_ms is None


def test_a_gpu_class_that_there_is_not_is_refused_with_those_that_there_are(rented):
    with pytest.raises(FleetRefused, match=r"'RTX 5090'.*RTX 3090"):
        rented.fleet(gpu_classes=["RTX 5090"]).price()


def test_limits_are_the_quotas_as_last_heard(rented):
    fleet = rented.fleet()
    assert fleet.limits.excluded_after_reallocation_s == 48 * 3600
    fleet.desired(1)
    assert (fleet.limits.most_nodes, fleet.limits.reallocations_per_minute) == (100, 10)
    rented.cloud.quotas["container_replicas_quota"] = 7
    fleet.list()
    assert fleet.limits.most_nodes == 100
    rented.cloud.advance(61)
    fleet.list()
    assert fleet.limits.most_nodes == 7


@pytest.mark.parametrize(
    ("name", "options", "most"),
    [
        ("loras", {}, 10_000),
        ("l" * 54, {}, 10_000),
        ("l" * 55, {}, 500),
        ("loras", {"group_id": "5ed00433-ff49-5244-a49a-94e2a7b2bd3b"}, 500),
    ],
    ids=["short name", "longest name", "name without room for a number", "group id"],
)
def test_a_number_that_no_groups_can_have_is_refused(rented, name, options, most):
    fleet = rented.fleet(name, **options)
    assert fleet.limits.most_nodes == most
    for nodes in (most + 1, -1):
        with pytest.raises(FleetRefused, match=f"0 to {most}"):
            fleet.desired(nodes)
    assert rented.cloud.groups == {}


def test_prices_are_asked_for_again_after_a_while(rented):
    fleet = rented.fleet()
    for _ in range(5):
        fleet.price()
    assert rented.cloud.count("GET", "/gpu-classes") == 1
    rented.cloud.advance(301)
    fleet.price()
    assert rented.cloud.count("GET", "/gpu-classes") == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:8470", "http://localhost:8470", "http://[::1]:8470"])
def test_no_node_is_paid_for_that_could_not_reach_the_server(rented, url):
    with pytest.raises(FleetRefused, match="public_url"):
        rented.fleet(env={"GIORNATA_URL": url}).desired(1)
    assert rented.cloud.groups == {}


def test_nodes_take_what_the_fleet_is_for(rented):
    rented.work = NodeWork(kinds=("train", "validate"), places=4)
    rented.fleet().desired(1)
    env = rented.group.document["container"]["environment_variables"]
    assert (json.loads(env["GIORNATA_KINDS"]), env["GIORNATA_PLACES"]) == (["train", "validate"], "4")
    assert "GIORNATA_DEVICE" not in env, "that is about the server's machine"


def test_commands_that_are_longer_than_a_variable_may_be_are_refused_at_start(rented):
    rented.work = NodeWork(kinds=("x-count",), workloads={"x-count": "count " + "x" * 1000})
    with pytest.raises(InvalidInput, match="1000 characters"):
        rented.fleet()
