"""What is particular to Kubernetes, on the strict API server and, where there is one, on a real one."""

import json

import pytest
import yaml
from tests.contract.fleets.kubernetes_fleets import another, raised, workload
from tests.fixtures.kubernetes_cluster import DELETION_COST
from tests.fixtures.kubernetes_http import Handler
from tests.fixtures.kubernetes_real import real_cluster
from tests.fixtures.kubernetes_requests import ResourceRequest
from tests.fixtures.kubernetes_under_test import (
    NAMESPACE,
    ROOT,
    SERVER,
    client_of,
    dependencies,
    rules_of_the_server,
    strict_cluster,
)

from giornata.control.ports.fleet import InstanceState
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone
from giornata.fleets.kubernetes.driver import fleet_on
from giornata.fleets.kubernetes.options import KubernetesOptions


def test_a_disruption_budget_makes_renewing_wait_and_nothing_else(opened, tmp_path):
    with opened(workload_kind="StatefulSet") as it:
        first, second = raised(it, 2)
        renewing = another(it, tmp_path, workload_kind="StatefulSet", image="registry.example/other:1")
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "most-stay"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"giornata/fleet": "gpu"}}},
        }
        it.api.call("POST", f"/apis/policy/v1/namespaces/{it.api.namespace}/poddisruptionbudgets", budget)
        with pytest.raises(FleetUnavailable, match="disruption budget"):
            renewing.renew([first])
        assert {each.state for each in it.fleet.list()} == {InstanceState.RUNNING}
        it.fleet.reallocate(second, reason="a budget is for what is voluntary")
        it.settle()
        assert first in [each.id for each in it.fleet.list()]


@pytest.mark.parametrize("leaves", [0, 1])
def test_marks_of_an_earlier_scale_in_do_not_stay(opened, leaves):
    with opened() as it:
        pods = raised(it, 2)
        # It changed its mind before the cluster acted: a mark is there, and the pod stays.
        (kept,) = [pod for pod in it.api.pods() if pod["metadata"]["uid"] == pods[1 - leaves]]
        it.api.call("PATCH", it.api.pod_path(kept), {"metadata": {"annotations": {DELETION_COST: "-1000"}}})
        it.fleet.desired(1, leaving=[pods[leaves]])
        it.settle()
        assert [each.id for each in it.fleet.list()] == [kept["metadata"]["uid"]]


def test_an_operators_own_deletion_cost_is_left_alone(opened):
    with opened() as it:
        first, second, third = raised(it, 3)
        for pod in it.api.pods():
            if pod["metadata"]["uid"] == second:
                own = {"metadata": {"annotations": {DELETION_COST: "50"}}}
                it.api.call("PATCH", it.api.pod_path(pod), own)
        it.fleet.desired(2, leaving=[first])
        it.settle()
        kept = {pod["metadata"]["uid"]: pod["metadata"].get("annotations", {}) for pod in it.api.pods()}
        assert kept[second][DELETION_COST] == "50"
        assert DELETION_COST not in kept[third]


@pytest.mark.parametrize("verb", ["delete_pod", "evict_pod", "annotate_pod"])
def test_a_pod_that_took_over_a_name_is_not_touched(opened, verb):
    from giornata.fleets.kubernetes.errors import Missing, ObjectConflict

    with opened(workload_kind="StatefulSet") as it:
        (old_id,) = raised(it, 1)
        (old,) = it.fleet._pods()
        it.vanish(old_id)
        it.settle()
        (new,) = it.fleet.list()
        assert (new.name, new.id == old_id) == (old.metadata.name, False)
        call = getattr(it.fleet.calls, verb)
        with pytest.raises((Missing, ObjectConflict)):
            call(old, {DELETION_COST: "-1000"}) if verb == "annotate_pod" else call(old)
        assert it.fleet.list() == [new]


def test_pods_get_what_the_settings_say_only_while_there_are_none(opened, tmp_path):
    with opened() as it:
        before = raised(it, 2)
        changed = another(it, tmp_path, image="registry.example/giornata-node:2")
        changed.desired(3)
        it.settle()
        assert set(before) < {each.id for each in changed.list()}, "healthy pods are not replaced"
        changed.desired(0)
        it.settle()
        changed.desired(1)
        it.settle()
        (pod,) = it.fleet._pods()
        assert pod.spec.containers[0].image == "registry.example/giornata-node:2"


def test_a_workload_of_the_operator_is_scaled_and_not_changed(opened, tmp_path):
    with opened() as it:
        manifest = it.fleet.workload(0)
        manifest["metadata"]["annotations"] = {}
        path = f"/apis/apps/v1/namespaces/{it.api.namespace}/deployments"
        it.api.call("POST", path, manifest)
        other = another(it, tmp_path, image="registry.example/giornata-node:2")
        other.desired(1)
        it.settle()
        (pod,) = other._pods()
        assert pod.spec.containers[0].image == "registry.example/giornata-node:1"


def test_fleet_without_image_and_without_workload_is_unavailable(opened, tmp_path):
    with opened() as it:
        bare = fleet_on(it.fleet.calls.client, it.api.namespace, "gpu", KubernetesOptions(), dependencies(tmp_path))
        bare.desired(0)
        with pytest.raises(FleetUnavailable, match="giornata-gpu does not exist"):
            bare.desired(1)
        assert it.api.workloads("deployments") == []


def test_a_pod_whose_machine_is_dead_is_stopping_and_another_comes(opened):
    with opened() as it:
        (first,) = raised(it, 1)
        (instance,) = it.fleet.list()
        it.machines.dead.add(instance.machine_id)
        it.fleet.reallocate(first, reason="it does not answer")
        for _ in range(50):
            it.controllers.step() if it.server.users else None
            it.machines.step()
            listed = {each.id: each for each in it.fleet.list()}
            if sum(each.state is InstanceState.RUNNING for each in listed.values()) == 1 and len(listed) == 2:
                break
        assert listed[first].state is InstanceState.STOPPING, "it may run on: the cluster cannot know"
        it.fleet.reallocate(first, reason="again")  # and is not asked twice
        assert len(it.fleet.list()) == 2


def test_an_image_that_never_comes_is_starting_and_a_container_that_ran_is_running_since_then(opened):
    with opened() as it:
        it.fleet.desired(1)
        it.settle()
        (running,) = it.fleet.list()
        assert running.state is InstanceState.RUNNING
        assert running.running_since_ms is not None
        (pod,) = it.api.pods()
        waiting = {"waiting": {"reason": "ImagePullBackOff"}}
        status = pod["status"]["containerStatuses"][0] | {"state": {**waiting, "running": None}, "ready": False}
        it.machines.set_status(pod, {"containerStatuses": [status]})
        (now,) = it.fleet.list()
        assert (now.state, now.running_since_ms) == (InstanceState.STARTING, None)


def test_an_account_without_rights_is_refused_and_says_what_is_missing(strict):
    strict.server.users[SERVER] = [rule for rule in rules_of_the_server() if "pods" not in rule["resources"]]
    with pytest.raises(FleetRefused, match="403: pods"):
        strict.fleet.list()


def test_a_token_that_is_not_known_is_refused(opened, tmp_path):
    with opened() as it:
        client = client_of(
            it.fleet.calls.client.configuration.host, "nobody", ca=it.fleet.calls.client.configuration.ssl_ca_cert
        )
        stranger = fleet_on(client, it.api.namespace, "gpu", KubernetesOptions(image="it"), dependencies(tmp_path))
        with pytest.raises(FleetRefused, match="401: Unauthorized"):
            stranger.list()


def test_a_pod_that_the_cluster_would_not_take_is_refused_with_its_words(opened):
    with opened(run_as=2**40) as it, pytest.raises(FleetRefused, match="runAsUser"):
        it.fleet.desired(1)


def answering(code: int, body: bytes, headers: dict[str, str], kind: str = "text/html"):
    def misbehave(handler: Handler, _asked: ResourceRequest) -> bool:
        handler.reply(code, body, headers, kind=kind)
        return True

    return misbehave


@pytest.mark.parametrize(
    ("code", "headers", "retry_after_s"),
    [(429, {"Retry-After": "7"}, 7.0), (429, {}, None), (500, {}, None), (503, {"Retry-After": "soon"}, None),
     (200, {}, None), (300, {}, None), (302, {"Location": "http://127.0.0.1:1/"}, None)],
)  # fmt: skip
def test_an_answer_that_is_none_is_unavailable(strict, code, headers, retry_after_s):
    raised(strict, 1)
    strict.server.misbehave = answering(code, b"<html>busy</html>", headers)
    for call in (strict.fleet.list, lambda: strict.fleet.desired(2), lambda: strict.fleet.drain("any")):
        with pytest.raises(FleetUnavailable) as caught:
            call()
        assert caught.value.retry_after_s == retry_after_s


def test_a_list_whose_rest_expired_is_read_again_from_its_beginning(strict):
    raised(strict, 5)
    strict.fleet.calls.page = 2
    seen: list[str] = []

    def expire_once(_handler: Handler, asked: ResourceRequest) -> bool:
        seen.append(asked.query.get("continue", ""))
        if len(seen) == 2:
            strict.server.expire_tokens()
        return False

    strict.server.misbehave = expire_once
    assert len({each.id for each in strict.fleet.list()}) == 5
    assert [bool(token) for token in seen] == [False, True, False, True, True]


def test_a_list_that_always_expires_is_unavailable(strict):
    raised(strict, 3)
    strict.fleet.calls.page = 2
    strict.server.misbehave = lambda _handler, _asked: bool(strict.server.expire_tokens())
    with pytest.raises(FleetUnavailable, match="changes faster"):
        strict.fleet.list()


def test_two_servers_that_make_the_workload_at_once_make_one(strict):
    def make_first(_handler: Handler, asked: ResourceRequest) -> bool:
        if asked.verb == "create":
            strict.server.misbehave = None
            strict.server._create(asked)
            strict.server.objects["deployments", NAMESPACE, "giornata-gpu"]["spec"]["replicas"] = 1
        return False

    strict.server.misbehave = make_first
    assert len(raised(strict, 2)) == 2
    workload(strict)


def test_a_template_that_somebody_else_changed_meanwhile_is_left_to_the_next_time(strict, tmp_path):
    raised(strict, 1)
    strict.fleet.desired(0)
    strict.settle()

    def touch(_handler: Handler, asked: ResourceRequest) -> bool:
        if asked.verb == "update":
            strict.server.misbehave = None
            strict.server._store("deployments", NAMESPACE, workload(strict))
        return False

    changed = another(strict, tmp_path, image="registry.example/giornata-node:2")
    strict.server.misbehave = touch
    with pytest.raises(FleetUnavailable, match="changed at the same time"):
        changed.desired(1)
    changed.desired(1)
    assert workload(strict)["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":2")


def test_the_shipped_role_allows_what_the_driver_does_and_nothing_more(tmp_path):
    used: set[tuple[str, str, str]] = set()
    for kind in ("Deployment", "StatefulSet"):
        with strict_cluster(tmp_path, workload_kind=kind) as it:
            _, second, _ = raised(it, 3)
            it.fleet.desired(2, leaving=[second])
            it.settle()
            it.fleet.drain(it.fleet.list()[0].id)
            it.settle()
            it.fleet.reallocate(it.fleet.list()[0].id, reason="a test")
            it.settle()
            renewing = another(it, tmp_path, workload_kind=kind, image="registry.example/other:1")
            renewing.renew([each.id for each in it.fleet.list()])
            it.settle()
            assert renewing.shortage() == ""
            it.fleet.desired(0)
            it.settle()
            another(it, tmp_path, workload_kind=kind, image="registry.example/other:2").desired(1)
            used |= it.server.permissions
    allowed = {
        (verb, group, resource)
        for rule in rules_of_the_server()
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert used == allowed


def test_gone_is_found_by_listing_and_not_from_one_answer(strict):
    (first,) = raised(strict, 1)
    missing = json.dumps({"kind": "Status", "code": 404, "message": "not found"}).encode()

    def lie(handler: Handler, asked: ResourceRequest) -> bool:
        if asked.verb in ("delete", "patch"):
            handler.reply(404, missing)
            return True
        return False

    strict.server.misbehave = lie
    for call in (strict.fleet.drain, lambda one: strict.fleet.reallocate(one, reason="a test")):
        with pytest.raises(FleetUnavailable, match="is in the list"):
            call(first)

    def vanish_before(_handler: Handler, asked: ResourceRequest) -> bool:
        if asked.verb == "delete":
            strict.server.objects.clear()
        return False

    strict.server.misbehave = vanish_before
    with pytest.raises(InstanceGone):
        strict.fleet.reallocate(first, reason="a test")


def test_the_shipped_manifests_are_taken_by_a_real_server(tmp_path):
    with real_cluster(tmp_path) as it:
        label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
        it.api.call("PATCH", f"/api/v1/namespaces/{it.api.namespace}", label)
        plurals = {"Ingress": "ingresses", "PriorityClass": None, "Namespace": None}
        for file in sorted((ROOT / "deploy/kubernetes").glob("*.yaml")):
            for document in yaml.safe_load_all(file.read_text()):
                kind, version = document["kind"], document["apiVersion"]
                plural = plurals.get(kind, f"{kind.lower()}s")
                if plural is None or file.stem == "server-rbac":
                    continue  # of the whole cluster, or there already: the fixture applies them for real
                document["metadata"]["namespace"] = it.api.namespace
                where = f"/apis/{version}" if "/" in version else f"/api/{version}"
                path = f"{where}/namespaces/{it.api.namespace}/{plural}?dryRun=All&fieldValidation=Strict"
                it.api.call("POST", path, document)


def test_pods_of_fleet_run_in_restricted_namespace(tmp_path):
    with real_cluster(tmp_path, priority_class="giornata-node") as it:
        label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
        it.api.call("PATCH", f"/api/v1/namespaces/{it.api.namespace}", label)
        it.fleet.desired(1)
        it.settle()
        (pod,) = it.api.pods()
        environment = {each["name"]: each.get("valueFrom") for each in pod["spec"]["containers"][0]["env"]}
        assert environment["GIORNATA_INSTANCE_ID"]["fieldRef"]["fieldPath"] == "metadata.uid"
        assert it.fleet.list()[0].id == pod["metadata"]["uid"]
        assert pod["spec"]["priority"] == -10


def test_a_server_that_does_not_speak_tls_is_unavailable(strict, tmp_path):
    url = strict.fleet.calls.client.configuration.host.replace("http:", "https:")
    fleet = fleet_on(client_of(url, SERVER), NAMESPACE, "gpu", KubernetesOptions(image="it"), dependencies(tmp_path))
    with pytest.raises(FleetUnavailable):
        fleet.list()
