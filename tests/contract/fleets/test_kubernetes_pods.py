"""Why pods do not run, and of which settings they are."""

import pytest
from tests.contract.fleets.kubernetes_fleets import another, raised, workload
from tests.fixtures.kubernetes_cluster import DELETION_COST
from tests.fixtures.kubernetes_under_test import (
    NAMESPACE,
)

from giornata.control.ports.fleet import InstanceState, Outdated
from giornata.fleets.kubernetes.workload import TEMPLATE_DIGEST


def status_of_container(pod: dict, state: dict, last: dict | None = None) -> dict:
    container = pod["spec"]["containers"][0]
    status = {"name": container["name"], "image": container["image"], "imageID": "", "ready": False}
    status |= {"restartCount": 4, "state": state} | ({"lastState": last} if last else {})
    return {"containerStatuses": [status]}


def test_a_pod_that_no_machine_has_room_for_says_so(strict):
    strict.fleet.desired(1)
    strict.controllers.step()
    (pod,) = strict.api.pods()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    condition |= {"message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}
    strict.machines.set_status(pod, {"conditions": [condition]})
    (listed,) = strict.fleet.list()
    assert listed.trouble == "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    assert not listed.cannot_start, "it waits for a machine, and may get one"
    strict.settle()
    assert [each.trouble for each in strict.fleet.list()] == [""]


def test_a_container_that_ends_again_and_again_says_how(strict):
    raised(strict, 1)
    (pod,) = strict.api.pods()
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    strict.machines.set_status(pod, status_of_container(pod, waiting, ended))
    (listed,) = strict.fleet.list()
    assert (listed.state, listed.trouble) == (
        InstanceState.STARTING,
        "CrashLoopBackOff: back-off 40s restarting failed container: ended with status 137 (OOMKilled)",
    )
    assert (listed.restarts, listed.cannot_start) == (4, True)
    strict.machines.set_status(pod, status_of_container(pod, {"waiting": {"reason": "ContainerCreating"}}))
    assert [(each.trouble, each.cannot_start) for each in strict.fleet.list()] == [("", False)], "so every pod begins"


def test_pods_that_cannot_be_made_and_how_the_last_one_ended_are_told_of_the_fleet(strict):
    assert strict.fleet.shortage() == "", "there is no workload yet"
    first, _ = raised(strict, 2)
    strict.vanish(first)
    assert "Terminated" in strict.fleet.shortage()
    (name,) = [pod["metadata"]["name"] for pod in strict.api.pods() if pod["metadata"]["uid"] == first]
    assert name in strict.fleet.shortage()
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    condition |= {"message": "pods is forbidden: exceeded quota: gpus"}
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/giornata-gpu/status"
    strict.api.call("PATCH", path, {"status": {"conditions": [condition]}})
    assert strict.fleet.shortage().startswith(
        "no pod can be made: it is forbidden: exceeded quota: gpus; the last pod"
    )
    strict.api.call("PATCH", path, {"status": {"conditions": [condition | {"status": "False"}]}})
    assert "no pod can be made" not in strict.fleet.shortage()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"image": "registry.example/giornata-node:2"}, ("image",)),
        ({"environment": {"NEW": "1"}}, ("env.NEW",)),
        ({"cpu": "8"}, ("resources",)),
        ({"node_selector": {"pool": "a100"}}, ("node_selector",)),
        ({"run_as": 20_000}, ("pod",)),
    ],
)
def test_outdated_pods_name_the_changed_setting(opened, tmp_path, change, named):
    with opened() as it:
        pods = raised(it, 2)
        same = {"image": "registry.example/giornata-node:1", "priority_class": it.options.priority_class}
        assert another(it, tmp_path, **same).outdated() == Outdated()
        found = another(it, tmp_path, **(same | change)).outdated()
        assert (found.settings, found.instances) == (named, set(pods))


def test_pods_of_a_workload_made_before_they_bore_a_digest_are_of_its_settings(strict, tmp_path):
    pods = raised(strict, 1)
    for pod in strict.api.pods():
        strict.api.call("PATCH", strict.api.pod_path(pod), {"metadata": {"annotations": {TEMPLATE_DIGEST: None}}})
    assert strict.fleet.outdated() == Outdated()
    changed = another(strict, tmp_path, image="registry.example/giornata-node:2")
    assert changed.outdated().instances == set(pods)


def test_the_operators_own_workload_is_never_renewed(opened, tmp_path):
    with opened() as it:
        manifest = it.fleet.workload(0)
        manifest["metadata"]["annotations"] = {}
        it.api.call("POST", f"/apis/apps/v1/namespaces/{it.api.namespace}/deployments", manifest)
        other = another(it, tmp_path, image="registry.example/giornata-node:2")
        other.desired(1)
        it.settle()
        before = other.list()
        assert other.outdated() == Outdated()
        other.renew([before[0].id])
        it.settle()
        assert other.list() == before


def test_a_deployment_whose_nodes_have_let_go_is_replaced_whole_and_later_changes_are_careful(strict, tmp_path):
    raised(strict, 2)
    changed = another(strict, tmp_path, image="registry.example/giornata-node:2")
    changed.renew([])
    assert workload(strict)["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": "100%", "maxSurge": 0}
    changed.desired(0)
    strict.settle()
    another(strict, tmp_path, image="registry.example/giornata-node:3").desired(1)
    assert workload(strict)["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 1


def test_a_mark_for_later_outlives_the_scale_in_of_another(strict):
    first, second, _ = raised(strict, 3)
    strict.fleet.drain(first)
    strict.fleet.desired(2, leaving=[second])
    costs = {pod["metadata"]["uid"]: pod["metadata"]["annotations"].get(DELETION_COST) for pod in strict.api.pods()}
    assert (costs[first], costs[second]) == ("-500", "-1000")
