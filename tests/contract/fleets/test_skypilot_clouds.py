"""What a cloud cannot launch is said at the server's start, and no machine is asked for."""

import importlib.util

import pytest
from tests.contract.fleets.driver_skypilot import IMAGE, SkyPilotUnderTest
from tests.fixtures.skypilot_fake import PUBLISHED, FakeSky

from giornata.domain.errors import FleetRefused, InvalidInput
from giornata.fleets.skypilot.clouds import FEATURES, faults_of_clouds
from giornata.fleets.skypilot.task import SkyPilotOptions

PACKAGE = "https://wheels.example/giornata-0.1.0-py3-none-any.whl"
NO_SPOT = ("lambda", "kubernetes", "paperspace", "cudo", "fluidstack", "do", "seeweb", "shadeform", "slurm", "yotta")
without_package = pytest.mark.skipif(
    importlib.util.find_spec("sky") is None, reason="SkyPilot pins versions that are not ours"
)


def refused(**options) -> dict[str, str]:
    with pytest.raises(InvalidInput) as error:
        SkyPilotUnderTest(**options)
    return {fault.where.removeprefix("fleets.gpu.options."): str(fault) for fault in error.value.faults}


@pytest.mark.parametrize("cloud", NO_SPOT)
def test_spot_machines_by_default_are_refused_where_a_cloud_has_none(cloud):
    faults = refused(infra=["aws", cloud])
    assert cloud in faults["use_spot"]
    assert "use_spot = false" in faults["use_spot"]
    assert "aws" not in faults["use_spot"]


def test_refusal_names_every_feature_that_the_cloud_lacks():
    faults = refused(infra=["hyperbolic"])
    assert set(faults) == {"use_spot", "idle_minutes_to_down", "image"}
    assert "idle_minutes_to_down = 0" in faults["idle_minutes_to_down"]


def test_a_cloud_without_those_features_is_taken_by_a_fleet_that_does_not_ask_for_them():
    it = SkyPilotUnderTest(infra=["hyperbolic"], use_spot=False, idle_minutes_to_down=0, image=None, package=PACKAGE)
    it.fleet.desired(1)
    it.settle()
    ((task,),) = it.sky.tasks.values()
    assert "autostop" not in task["resources"]


def test_a_place_that_skypilot_does_not_know_is_refused_with_its_words():
    assert "Invalid resources YAML" in refused(infra=["lamda"])["infra"]


def test_a_cluster_that_only_skypilots_server_knows_is_no_fault(caplog):
    SkyPilotUnderTest(infra=["k8s/far-away"])
    assert "what k8s/far-away can do is not known here" in caplog.text


def test_anywhere_is_refused_before_a_launch_when_no_cloud_at_hand_can_do_it():
    it = SkyPilotUnderTest(infra=())
    it.sky.enabled = ("lambda", "kubernetes")
    with pytest.raises(FleetRefused, match="no cloud that SkyPilot has access to"):
        it.fleet.list()  # the first thing that the server does
    with pytest.raises(FleetRefused, match=r"lambda has no spot machines .*use_spot = false.*kubernetes"):
        it.fleet.desired(2)
    assert it.sky.waiting == [], "nothing was asked for"
    it.fleet.desired(0)
    it.sky.enabled = ("lambda", "runpod")
    it.fleet.desired(2)
    assert len(it.sky.waiting) == 2, "one cloud is enough: SkyPilot takes that one"


def test_features_lacking_in_any_cloud_all_have_a_message():
    assert {feature for lacking in PUBLISHED["lacks"].values() for feature in lacking} == set(FEATURES)


@without_package
def test_the_package_says_of_each_cloud_what_is_written_of_it(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    import sky

    options = SkyPilotOptions(image=IMAGE)
    options_of = {option: feature for feature, (option, _, _) in FEATURES.items()}
    for cloud, lacking in PUBLISHED["lacks"].items():
        for either in (sky, FakeSky()):
            faults = faults_of_clouds(either, options, [cloud], where="it")
            assert {options_of[fault.where.removeprefix("it.")] for fault in faults} == set(lacking), cloud
