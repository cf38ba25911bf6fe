"""What is particular to SkyPilot, and what holds the fake to the package."""

import importlib.util
import inspect
import json
from dataclasses import replace

import pytest
from tests.contract.fleets.driver_skypilot import SkyPilotUnderTest
from tests.fixtures import skypilot_fake
from tests.fixtures.skypilot_fake import (
    PUBLISHED,
    ClusterStatus,
    FakeSky,
    InstanceTypeInfo,
    NoCloudAccessError,
    ResourcesUnavailableError,
)
from tests.fixtures.skypilot_fake import Task as FakeTask

from giornata.control.ports.fleet import InstanceState, Outdated
from giornata.domain.errors import FleetRefused, FleetUnavailable, InvalidInput
from giornata.fleets.skypilot.clouds import REFUSED
from giornata.fleets.skypilot.driver import open_fleet
from giornata.fleets.skypilot.task import NodeFacts, SkyPilotOptions, task_of

STANDS_FOR = {
    "Task": skypilot_fake.Task,
    "Resources": skypilot_fake.Resources,
    "client": FakeSky,
    "sdk": skypilot_fake.Sdk,
    "clouds": FakeSky,
    "Cloud": skypilot_fake.Cloud,
}
INSTALLED = importlib.util.find_spec("sky") is not None
without_package = pytest.mark.skipif(
    not INSTALLED, reason="SkyPilot pins versions that are not ours: run these in an environment of its own"
)


def raised(it: SkyPilotUnderTest, nodes: int) -> list[str]:
    it.fleet.desired(nodes)
    it.settle()
    return [each.id for each in it.fleet.list()]


def test_the_fake_has_the_packages_calls_and_none_besides():
    for name, parameters in PUBLISHED["calls"].items():
        ours = FakeSky
        for part in name.split("."):
            ours = STANDS_FOR.get(part) or getattr(ours, part)
        mine = [each for each in inspect.signature(ours).parameters if each != "self"]
        assert [each for each in parameters if each in mine and each != "self"] == mine, name
    assert set(skypilot_fake.Record.__annotations__) <= set(PUBLISHED["records"]["StatusResponse"])
    assert set(skypilot_fake.Request.__annotations__) - {"result"} <= set(PUBLISHED["records"]["RequestPayload"])
    assert list(InstanceTypeInfo._fields) == PUBLISHED["records"]["InstanceTypeInfo"]
    assert [each.value for each in ClusterStatus] == PUBLISHED["enums"]["ClusterStatus"]
    assert set(REFUSED) <= set(PUBLISHED["exceptions"])
    assert set(vars(FakeSky().exceptions)) <= set(PUBLISHED["exceptions"])


@without_package
def test_published_sky_signatures_match_the_installed_package():
    import sky

    for name, parameters in PUBLISHED["calls"].items():
        theirs = sky
        for part in name.split("."):
            theirs = getattr(theirs, part)
        assert list(inspect.signature(theirs).parameters) == parameters, name
    assert [each.value for each in sky.ClusterStatus] == PUBLISHED["enums"]["ClusterStatus"]


@without_package
def test_the_package_takes_our_task():
    import sky

    options = SkyPilotOptions(
        infra=("aws/us-east-1", "runpod"), image="registry.example/node:1", cpus="4+", memory="24+"
    )
    task = sky.Task.from_yaml_config(
        task_of("giornata-gpu-1", options, options.infra, NodeFacts(fleet="gpu", url="https://x", key="k"))
    )
    assert {str(each.cloud) for each in task.resources} == {"AWS", "RunPod"}
    assert all(each.use_spot for each in task.resources)
    assert task.secrets["GIORNATA_NODE_KEY"].get_secret_value() == "k"


def test_asking_again_before_the_clouds_have_acted_launches_nothing_twice():
    it = SkyPilotUnderTest()
    it.fleet.desired(2)
    it.fleet.desired(2)
    assert [each.state for each in it.fleet.list()] == [InstanceState.STARTING] * 2
    it.settle()
    assert len(it.fleet.list()) == 2


def test_asking_again_before_the_clouds_have_acted_takes_nobody_else_down():
    it = SkyPilotUnderTest()
    first, second, third = raised(it, 3)
    it.fleet.desired(2, leaving=[second])
    states = {each.id: each.state for each in it.fleet.list()}
    assert states[second] is InstanceState.STOPPING
    it.fleet.desired(2)
    it.settle()
    assert {each.id for each in it.fleet.list()} == {first, third}


def test_a_launch_whose_answer_was_lost_is_found_and_not_repeated():
    it = SkyPilotUnderTest()
    it.sky.lose_replies = True
    with pytest.raises(FleetUnavailable):
        it.fleet.desired(2)  # the first is asked for, and nobody knows
    it.sky.lose_replies = False
    it.fleet.desired(2)
    it.settle()
    assert len(it.fleet.list()) == 2


def test_clusters_of_others_are_not_seen():
    it = SkyPilotUnderTest()
    (own,) = raised(it, 1)
    for name in ("giornata-gpus-1", "somebody-else"):
        it.sky.clusters[name] = skypilot_fake.Record(name, ClusterStatus.UP, 1)
    assert [each.id for each in it.fleet.list()] == [own]
    it.fleet.desired(0)
    it.settle()
    assert set(it.sky.clusters) == {"giornata-gpus-1", "somebody-else"}


@pytest.mark.parametrize(
    ("status", "init_kind", "state"),
    [
        (ClusterStatus.INIT, "launching", InstanceState.STARTING),
        (ClusterStatus.INIT, None, InstanceState.STARTING),
        (ClusterStatus.PENDING, None, InstanceState.STARTING),
        (ClusterStatus.INIT, "unhealthy", InstanceState.STOPPING),
        (ClusterStatus.STOPPED, None, InstanceState.STOPPING),
        (ClusterStatus.AUTOSTOPPING, None, InstanceState.STOPPING),
    ],
)
def test_broken_cluster_is_taken_down_and_relaunched_while_starting_one_is_kept(status, init_kind, state):
    it = SkyPilotUnderTest()
    first, second = raised(it, 2)
    it.sky.clusters[first].status, it.sky.clusters[first].init_kind = status, init_kind
    assert {each.id: each.state for each in it.fleet.list()}[first] is state
    it.fleet.desired(2)
    asked_down = [request.cluster_name for request, _ in it.sky.waiting if request.name == "sky.down"]
    assert asked_down == ([first] if status is ClusterStatus.STOPPED or init_kind == "unhealthy" else [])
    launched = [request for request, _ in it.sky.waiting if request.name == "sky.launch"]
    assert len(launched) == (1 if state is InstanceState.STOPPING else 0)
    assert second in it.sky.clusters


def test_a_reallocated_cluster_comes_back_in_another_region_where_there_is_one():
    it = SkyPilotUnderTest(infra=("aws/us-east-1", "gcp/europe-west4"))
    (first,) = raised(it, 1)
    assert it.sky.clusters[first].region == "us-east-1"
    it.fleet.reallocate(first, reason="a test")
    it.settle()
    (second,) = it.sky.clusters.values()
    assert (second.cloud, second.region) == ("GCP", "europe-west4")
    only = SkyPilotUnderTest(infra=("aws/us-east-1",))
    (first,) = raised(only, 1)
    only.fleet.reallocate(first, reason="a test")
    only.settle()
    (second,) = only.sky.clusters.values()
    assert second.name != first


def offer(cloud: str, region: str, price: float, spot_price: float) -> InstanceTypeInfo:
    return InstanceTypeInfo(cloud, "it", "RTX4090", 1, 8, 24, 32, price, spot_price, region)


def test_the_price_is_the_cheapest_of_the_catalog_where_nodes_may_be():
    it = SkyPilotUnderTest(price_usd_per_hour=None, infra=("aws/us-east-1",))
    it.sky.offers = [
        offer("AWS", "us-east-1", 0.9, 0.4),
        offer("AWS", "us-west-2", 0.9, 0.1),
        offer("AWS", "us-east-1", 0.2, float("nan")),
    ]
    assert (it.fleet.price().micro_usd_per_hour, it.fleet.price().source) == (400_000, "provider")
    assert it.sky.catalog_asked == 1, "kept for an hour"
    raised(it, 1)
    ((task,),) = it.sky.tasks.values()
    assert task["envs"]["GIORNATA_PRICE_USD_PER_HOUR"] == "0.4"
    on_demand = SkyPilotUnderTest(price_usd_per_hour=None, infra=(), use_spot=False)
    on_demand.sky.offers = it.sky.offers
    assert on_demand.fleet.price().micro_usd_per_hour == 200_000


def test_a_machine_costs_what_the_catalog_says_of_its_cloud_and_region():
    it = SkyPilotUnderTest(price_usd_per_hour=None, infra=("aws/us-east-1", "gcp/europe-west4"))
    it.sky.offers = [
        offer("AWS", "us-east-1", 0.9, 0.4),
        offer("AWS", "us-east-1", 0.8, 0.3),
        offer("AWS", "us-west-2", 0.9, 0.1),
        offer("GCP", "europe-west4", 0.9, 0.5),
    ]
    assert it.fleet.prices() == {"aws/us-east-1": 300_000, "gcp/europe-west4": 500_000}
    it.fleet.desired(1)
    assert [each.offer for each in it.fleet.list()] == [""], "nobody knows yet where it comes up"
    it.settle()
    assert [each.offer for each in it.fleet.list()] == ["aws/us-east-1"]
    assert SkyPilotUnderTest(price_usd_per_hour=0.3).fleet.prices() == {}
    assert it.sky.catalog_asked == 1, "kept for an hour"


def test_a_catalog_without_a_price_says_so():
    it = SkyPilotUnderTest(price_usd_per_hour=None)
    with pytest.raises(FleetUnavailable, match="no price of RTX4090"):
        it.fleet.price()


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (NoCloudAccessError("run sky check"), FleetRefused),
        (ValueError("Invalid task YAML"), FleetRefused),
        (skypilot_fake.ResourcesUnavailableError("no capacity"), FleetUnavailable),
        (RuntimeError("500"), FleetUnavailable),
        (ConnectionResetError(), FleetUnavailable),
    ],
)
def test_errors_say_whether_to_ask_again(trouble, expected):
    it = SkyPilotUnderTest()
    it.sky.trouble = trouble
    with pytest.raises(expected, match=type(trouble).__name__):
        it.fleet.list()


def test_the_key_of_nodes_is_a_secret_and_the_second_job_on_a_machine_ends_at_once():
    task = task_of("giornata-gpu-1", SkyPilotOptions(), (), NodeFacts(fleet="gpu", url="https://x", key="the-key"))
    assert "the-key" not in json.dumps(task | {"secrets": None})
    assert task["secrets"] == {"GIORNATA_NODE_KEY": "the-key"}
    assert task["run"].startswith("exec flock --nonblock")
    assert task["envs"]["GIORNATA_INSTANCE_ID"] == task["name"] == "giornata-gpu-1"
    assert task["resources"]["autostop"]["down"], "a machine that nobody needs ends without us"


@pytest.mark.skipif(INSTALLED, reason="SkyPilot is installed")
def test_fleet_without_skypilot_installed_names_the_extra():
    with pytest.raises(InvalidInput, match=r"in a clone.*\.\[server,skypilot\]"):
        open_fleet("gpu", SkyPilotOptions(), None)


def test_clusters_of_before_that_name_no_task_are_left_alone():
    it = SkyPilotUnderTest()
    raised(it, 1)
    (record,) = it.sky.clusters.values()
    it.sky.clusters = {"giornata-gpu-18bcfe56800-ab12": replace(record, name="giornata-gpu-18bcfe56800-ab12")}
    it.change_settings()
    assert it.fleet.outdated() == Outdated()
    it.fleet.renew(["giornata-gpu-18bcfe56800-ab12"])
    assert it.sky.waiting == []


def test_launches_that_failed_long_ago_or_of_others_are_not_told():
    it = SkyPilotUnderTest()
    it.sky.launches_fail = ResourcesUnavailableError("no such machine anywhere")
    it.sky.now_s -= 3601
    it.fleet.desired(1)
    it.sky.act()
    assert it.fleet.shortage() == ""
    it.sky.now_s += 3601
    it.sky.launch(FakeTask({}), cluster_name="giornata-other-1")
    it.sky.act()
    assert it.fleet.shortage() == ""
    it.fleet.desired(2)
    it.sky.act()
    said = it.fleet.shortage()
    assert said == "2 launches failed within the hour, at last: ResourcesUnavailableError: no such machine anywhere"


def test_a_cluster_that_does_not_come_up_says_why():
    it = SkyPilotUnderTest()
    (name,) = raised(it, 1)
    assert [each.trouble for each in it.fleet.list()] == [""]
    it.sky.clusters[name].status = ClusterStatus.INIT
    it.sky.clusters[name].init_status_reason = "setup failed with status 1"
    assert [each.trouble for each in it.fleet.list()] == ["setup failed with status 1"]
