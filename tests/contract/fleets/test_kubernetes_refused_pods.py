"""Pods that the cluster will not make: why is told, and settings that were corrected reach the workload."""

import pytest
from tests.contract.fleets.kubernetes_fleets import another, raised
from tests.contract.fleets.test_jobs_end import BoundedFleet, rig  # noqa: F401
from tests.fixtures.kubernetes_admission import pod_security, priority_classes, quota_of_memory, service_accounts
from tests.fixtures.kubernetes_under_test import NAMESPACE, SERVER, client_of, dependencies, rules_of_the_server

from giornata.control.caller import Caller
from giornata.control.fleets.read_fleets import list_fleets
from giornata.control.ports.fleet import Outdated
from giornata.domain.errors import FleetRefused
from giornata.fleets.kubernetes.driver import fleet_on
from giornata.fleets.kubernetes.options import KubernetesOptions
from giornata.protocol.project.admin import ROOT_PROJECT, Scope

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")
KINDS = ["Deployment", "StatefulSet"]
WRONG = {
    "priority class": (
        priority_classes("batch"),
        {"priority_class": "bacth"},
        "the PriorityClass bacth does not exist: create it, or correct priority_class",
    ),
    "service account": (
        service_accounts("nodes"),
        {"service_account": "ndoes"},
        "the ServiceAccount ndoes does not exist: create it, or correct service_account",
    ),
    "quota": (
        quota_of_memory("24Gi"),
        {"memory": "240Gi"},
        "the ResourceQuota memory leaves no room (requested: requests.memory=240Gi",
    ),
}
RIGHT = {"priority_class": "batch", "service_account": "nodes", "memory": "24Gi"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def asked_in_vain(it, nodes: int = 2) -> None:
    it.fleet.desired(nodes)
    it.settle()
    assert it.fleet.list() == []


@pytest.mark.parametrize("wrong", WRONG)
def test_why_no_pod_can_be_made_is_said_and_corrected_settings_bring_them(opened_strict, tmp_path, kind, wrong):
    admission, options, said = WRONG[wrong]
    with opened_strict(workload_kind=kind, **RIGHT | options) as it:
        it.server.admission.append(admission)
        asked_in_vain(it)
        assert said in it.fleet.shortage()
        corrected = another(it, tmp_path, workload_kind=kind, **RIGHT)
        corrected.desired(2)  # as the loop asks after a restart, for the number that stands
        it.settle()
        assert len(corrected.list()) == 2
        assert corrected.shortage() == ""


def test_rolling_renews_a_workload_of_which_no_pod_can_be_made(opened_strict, tmp_path, kind):
    with opened_strict(workload_kind=kind, **RIGHT | {"priority_class": "bacth"}) as it:
        it.server.admission.append(priority_classes("batch"))
        asked_in_vain(it)
        corrected = another(it, tmp_path, workload_kind=kind, **RIGHT)
        assert corrected.outdated() == Outdated(settings=("pod",))
        corrected.renew([])
        it.settle()
        assert corrected.outdated() == Outdated()
        assert len(corrected.list()) == 2


def test_a_namespace_whose_security_level_forbids_pods_is_named(opened_strict, kind):
    with opened_strict(workload_kind=kind) as it:
        it.server.admission.append(pod_security)
        asked_in_vain(it)
        assert "the namespace's Pod Security level restricted:latest forbids them" in it.fleet.shortage()
        it.server.admission.clear()
        assert len(raised(it, 2)) == 2


def test_shortage_without_right_to_read_events_says_403(opened_strict):
    with opened_strict(workload_kind="StatefulSet") as it:
        it.server.users[SERVER] = [rule for rule in rules_of_the_server() if "events" not in rule["resources"]]
        it.server.admission.append(pod_security)
        asked_in_vain(it)
        assert "the events that say why cannot be read: the cluster says 403" in it.fleet.shortage()


def test_pods_that_are_there_keep_the_template_of_a_fleet_whose_number_stays(strict, tmp_path):
    before = raised(strict, 2)
    another(strict, tmp_path, image="registry.example/giornata-node:2").desired(2)
    strict.settle()
    assert [each.id for each in strict.fleet.list()] == before


def test_a_namespace_that_is_not_there_is_refused_and_named(strict, tmp_path):
    url = strict.fleet.calls.client.configuration.host
    fleet = fleet_on(client_of(url, SERVER), "giornta", "gpu", KubernetesOptions(image="it"), dependencies(tmp_path))
    assert fleet.list() == []
    with pytest.raises(
        FleetRefused, match=r'namespaces "giornta" not found; create the namespace giornta, or correct'
    ):
        fleet.desired(1)


def test_a_namespace_that_is_not_there_is_shown_by_fleets(rig, strict):  # noqa: F811
    strict.server.namespaces.clear()
    installation = BoundedFleet(rig, strict, most=1)
    rig.add_job()
    with pytest.raises(FleetRefused):
        next(installation.leases())
    (shown,) = list_fleets(rig.ctx, ADMIN).items
    assert 'namespaces "giornata" not found' in shown.trouble


@pytest.mark.parametrize("code", [404, 409])
def test_api_server_404_or_409_raises_fleet_refused(strict, code):
    raised(strict, 1)

    def refuse(handler, asked) -> bool:
        if asked.verb in {"list", "patch"}:
            handler.reply(code, {"kind": "Status", "code": code, "message": "it is not as you think"})
            return True
        return False

    strict.server.misbehave = refuse
    for call in (strict.fleet.list, lambda: strict.fleet.desired(2)):
        with pytest.raises(FleetRefused, match=f"{code}: it is not as you think"):
            call()


def test_a_workload_that_is_taken_and_gone_again_is_a_refusal(strict):
    def taken(handler, asked) -> bool:
        if asked.verb == "create":
            handler.reply(409, {"kind": "Status", "code": 409, "message": "it is being deleted"})
            return True
        return False

    strict.server.misbehave = taken
    with pytest.raises(FleetRefused, match="404"):
        strict.fleet.desired(1)


@pytest.mark.parametrize(("version", "taken"), [((1, 21), False), ((1, 22), True), ((2, 0), True)])
def test_a_cluster_that_is_too_old_gets_no_more_pods(strict, version, taken):
    strict.server.version = version
    if taken:
        assert len(raised(strict, 1)) == 1
        return
    with pytest.raises(FleetRefused, match=r"runs Kubernetes 1\.21, and 1\.22 is the least version"):
        strict.fleet.desired(1)
    assert strict.fleet.list() == []
    strict.fleet.desired(0)


def test_pods_that_are_there_can_be_let_go_on_a_cluster_that_is_too_old(strict):
    raised(strict, 2)
    strict.fleet.calls.version = (1, 20)
    strict.fleet.desired(1)
    strict.settle()
    assert len(strict.fleet.list()) == 1


def set_by_hand(it, nodes: int) -> None:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/giornata-gpu/scale?fieldManager=kubectl"
    it.api.call("PATCH", path, {"spec": {"replicas": nodes}})
    it.settle()


def test_a_number_that_was_changed_by_hand_is_mentioned_and_set_again(strict, caplog):
    raised(strict, 2)
    assert strict.fleet.shortage() == ""
    set_by_hand(strict, 4)
    assert "kubectl set the number of pods to 4 at " in strict.fleet.shortage()
    assert "not Giornata" in strict.fleet.shortage()
    assert len(raised(strict, 2)) == 2
    assert "kubectl set the number of pods to 4" in caplog.text
    assert strict.fleet.shortage() == "", "it is the driver's own again"


def test_pods_that_ended_are_not_listed_again_and_again(strict):
    first, _ = raised(strict, 2)
    strict.vanish(first)
    sent = []
    strict.server.misbehave = lambda _handler, asked: sent.append(asked.query.get("fieldSelector")) is not None
    assert [each.id for each in strict.fleet.list()].count(first) == 0
    assert sent == ["status.phase!=Succeeded,status.phase!=Failed"]
    assert "Terminated" in strict.fleet.shortage()
    assert sent[-1] == "status.phase=Failed"


def test_a_pod_asks_for_the_storage_that_its_scratch_volume_may_take(strict):
    raised(strict, 1)
    (pod,) = strict.api.pods()
    assert pod["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] == "60Gi"
