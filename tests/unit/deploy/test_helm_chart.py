"""The chart, rendered by Helm itself: its output is linted as the plain manifests are, and compared with the code."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.kubernetes_schemas import rule_faults, schema_faults

from giornata.api.settings import ApiSettings
from giornata.cli.settings import Settings, admin_key_of
from giornata.cli.settings.settings import OLD_NAMES
from giornata.fleets.kubernetes.options import KubernetesOptions

helm = pytest.importorskip("helm_python", reason="Helm has a wheel for Linux on x86-64 only")

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "giornata"
VARIABLE = re.compile(r"\bGIORNATA_[A-Z0-9_]+")
SECRET = {
    "GIORNATA_ADMIN_KEY": "gk_00000001_" + "a" * 43,
    "GIORNATA_SECRETS_KEY": "c2VjcmV0cyBvZiB0ZXN0cyBhcmUgbm8gc2VjcmV0cyE=",
    "GIORNATA_DATABASE": "postgresql://giornata:PASSWORD@postgres.example/giornata",
    "GIORNATA_BLOBS": "s3://bucket/giornata?region=us-east-1",
}
CLUSTER = {"secret": SECRET, "server": {"replicas": 3}, "ingress": {"enabled": True, "tlsSecret": "giornata-tls"}}
VOLUME = {
    "existingSecret": "mine",
    "persistence": {"enabled": True, "storageClass": "fast"},
    "nodes": {"enabled": True, "environment": {"GIORNATA_THREADS": "4"}, "nodeSelector": {"gpu": "l4"}},
    "server": {"environment": {"GIORNATA_LEASE_S": "120"}, "tolerations": [{"operator": "Exists"}]},
    "imagePullSecrets": [{"name": "registry"}],
    "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}},
}
BARE = {
    "existingSecret": "mine",
    "rbac": {"create": False, "serviceAccount": "theirs"},
    "podDisruptionBudget": {"enabled": False},
    "priorityClass": {"create": False},
    "settings": "",
}
ALL = {"cluster": CLUSTER, "volume": VOLUME, "bare": BARE}
every_value = pytest.mark.parametrize("values", ALL.values(), ids=ALL)


def rendered(values: dict[str, Any], release: str = "atelier") -> list[dict[str, Any]]:
    chart = helm.Chart.load(CHART)
    try:
        files = chart.render(values, name=release, namespace="painting")
    finally:
        chart.close()
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def of_kind(values: dict[str, Any], kind: str, ending: str = "") -> dict[str, Any]:
    (found,) = [
        each for each in rendered(values) if each["kind"] == kind and each["metadata"]["name"].endswith(ending)
    ]
    return found


def server_pod(values: dict[str, Any]) -> dict[str, Any]:
    return of_kind(values, "Deployment", "-server")["spec"]["template"]


def plain(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / name).read_text()))


@every_value
def test_helm_finds_nothing_to_complain_of(values: dict[str, Any]) -> None:
    report = helm.lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@every_value
def test_helm_chart_output_passes_kubernetes_schemas_and_rules_for_all_values(values: dict[str, Any]) -> None:
    made = rendered(values)
    for document in made:
        kind, version = document["kind"], document["apiVersion"]
        assert schema_faults(document, kind=kind, api_version=version) == [], kind
        assert rule_faults(document) == [], kind
        assert document["metadata"].get("namespace", "painting") == "painting"
    names = [(each["kind"], each["metadata"]["name"]) for each in made]
    assert len(set(names)) == len(names)


def test_each_part_is_there_when_it_is_wanted() -> None:
    kinds = {name: sorted({each["kind"] for each in rendered(values)}) for name, values in ALL.items()}
    always = {"ConfigMap", "Deployment", "Service"}
    own = {"Role", "RoleBinding", "ServiceAccount", "PodDisruptionBudget", "PriorityClass"}
    assert set(kinds["bare"]) == always
    assert set(kinds["cluster"]) == always | own | {"Secret", "Ingress"}
    assert set(kinds["volume"]) == always | own | {"PersistentVolumeClaim"}


@every_value
def test_every_variable_is_a_setting(values: dict[str, Any]) -> None:
    known = {f"GIORNATA_{name.upper()}" for name in (*Settings.model_fields, *OLD_NAMES)}
    found = set(VARIABLE.findall(yaml.safe_dump_all(rendered(values))))
    assert found <= known
    assert {"GIORNATA_DATA", "GIORNATA_PUBLIC_URL", "GIORNATA_LOG_FORMAT"} <= found


@every_value
def test_names_that_belong_together_are_the_same(values: dict[str, Any]) -> None:
    made = rendered(values)
    there = {(each["kind"], each["metadata"]["name"]) for each in made}
    pods = [each["spec"]["template"] for each in made if each["kind"] == "Deployment"]
    for each in made:
        if each["kind"] == "Deployment":
            selector = each["spec"]["selector"]["matchLabels"].items()
            assert selector <= each["spec"]["template"]["metadata"]["labels"].items()
        if each["kind"] == "Ingress":
            for path in each["spec"]["rules"][0]["http"]["paths"]:
                assert ("Service", path["backend"]["service"]["name"]) in there
    service = of_kind(values, "Service")
    (chosen,) = [pod for pod in pods if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
    spec = chosen["spec"]
    (container,) = spec["containers"]
    assert container["name"] == "server"
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert container["ports"][0]["containerPort"] == Settings.model_fields["port"].default
    secret = container["envFrom"][0]["secretRef"]["name"]
    assert secret == values.get("existingSecret") or ("Secret", secret) in there
    account = spec["serviceAccountName"]
    assert account == values.get("rbac", {}).get("serviceAccount") or ("ServiceAccount", account) in there
    for volume in spec["volumes"]:
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in there
        if "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in there
    for pod in pods:
        wanted = pod["spec"].get("priorityClassName")
        assert wanted is None or ("PriorityClass", wanted) in there


def test_the_server_may_do_what_the_plain_manifest_lets_it() -> None:
    (role,) = [each for each in plain("server-rbac.yaml") if each["kind"] == "Role"]
    assert of_kind(CLUSTER, "Role")["rules"] == role["rules"]
    binding = of_kind(CLUSTER, "RoleBinding")
    assert binding["roleRef"]["name"] == of_kind(CLUSTER, "Role")["metadata"]["name"]
    assert binding["subjects"][0]["name"] == of_kind(CLUSTER, "ServiceAccount")["metadata"]["name"]


def test_the_servers_pod_is_that_of_the_plain_manifest() -> None:
    (deployment,) = [each for each in plain("server.yaml") if each["kind"] == "Deployment"]
    wanted, made = deployment["spec"]["template"]["spec"], server_pod(CLUSTER)["spec"]
    for name in ("securityContext", "terminationGracePeriodSeconds"):
        assert made[name] == wanted[name]
    (mine,), (theirs,) = made["containers"], wanted["containers"]
    for name in ("securityContext", "livenessProbe", "readinessProbe", "startupProbe", "volumeMounts", "resources"):
        assert mine[name] == theirs[name], name
    environments = [{each["name"]: each["value"] for each in one["env"]} for one in (mine, theirs)]
    assert environments[0] == environments[1]


@every_value
def test_data_lies_in_a_folder_that_the_server_can_close(values: dict[str, Any]) -> None:
    (container,) = server_pod(values)["spec"]["containers"]
    (data,) = [each["value"] for each in container["env"] if each["name"] == "GIORNATA_DATA"]
    (mount,) = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "data"]
    assert Path(data).parent == Path(mount), "the mount point itself belongs to root and is open"


def test_the_fleets_of_the_settings_are_options_of_the_driver() -> None:
    def fleet(values: dict[str, Any]) -> dict[str, Any]:
        return tomllib.loads(of_kind(values, "ConfigMap")["data"]["giornata.toml"])["fleets"]["gpu"]

    table = fleet(CLUSTER)
    options = KubernetesOptions.model_validate(table["options"])
    assert table["driver"] == "kubernetes"
    assert options.priority_class == of_kind(CLUSTER, "PriorityClass")["metadata"]["name"]
    assert options.server_url == "http://atelier-server.painting.svc"
    assert fleet(VOLUME)["options"]["server_url"] == "http://atelier-server.painting.svc:8080"


def test_the_admin_key_comes_from_the_secret_and_another_one_starts_the_pods_again() -> None:
    given = of_kind(CLUSTER, "Secret")["stringData"]
    assert given == SECRET
    assert admin_key_of(Settings(admin_key=given["GIORNATA_ADMIN_KEY"])) == given["GIORNATA_ADMIN_KEY"]
    another = CLUSTER | {"secret": SECRET | {"GIORNATA_ADMIN_KEY": "gk_00000002_" + "b" * 43}}
    before, after = (server_pod(each)["metadata"]["annotations"] for each in (CLUSTER, another))
    assert before["checksum/secret"] != after["checksum/secret"]
    assert before["checksum/settings"] == after["checksum/settings"]


@pytest.mark.parametrize("source", ["chart", "plain"])
def test_streams_survive_the_ingress_and_strangers_see_no_metrics(source: str) -> None:
    ingress = of_kind(CLUSTER, "Ingress") if source == "chart" else plain("ingress.yaml")[0]
    annotations = {
        name.removeprefix("nginx.ingress.kubernetes.io/"): value
        for name, value in ingress["metadata"]["annotations"].items()
    }
    assert int(annotations["proxy-read-timeout"]) > 10 * ApiSettings().keep_alive_s
    assert int(annotations["proxy-read-timeout"]) > 30, "a claim waits for so long"
    assert annotations["proxy-buffering"] == annotations["proxy-request-buffering"] == "off"
    paths = {path["path"] for path in ingress["spec"]["rules"][0]["http"]["paths"]}
    assert paths == {"/v1", "/openapi.json"}
    (tls,) = ingress["spec"]["tls"]
    assert tls["hosts"] == [ingress["spec"]["rules"][0]["host"]]


def test_the_public_address_is_the_ingress_unless_said_otherwise() -> None:
    def told(values: dict[str, Any]) -> str:
        (container,) = server_pod(values)["spec"]["containers"]
        return {each["name"]: each.get("value") for each in container["env"]}["GIORNATA_PUBLIC_URL"]

    assert told(CLUSTER) == "https://giornata.example"
    assert told(CLUSTER | {"ingress": {"enabled": True}}) == "http://giornata.example"
    assert told(VOLUME) == "http://atelier-server.painting.svc:8080"
    assert told(BARE | {"server": {"publicUrl": "https://elsewhere.example"}}) == "https://elsewhere.example"


def test_nodes_that_stand_by_have_what_those_of_the_driver_have() -> None:
    (shipped,) = plain("nodes.yaml")
    wanted = shipped["spec"]["template"]["spec"]
    made = of_kind(VOLUME, "Deployment", "-nodes")["spec"]["template"]["spec"]
    (mine,), (theirs,) = made["containers"], wanted["containers"]
    for name in ("securityContext", "resources", "volumeMounts", "args"):
        assert mine[name] == theirs[name], name
    assert made["volumes"] == wanted["volumes"]
    assert {each["name"] for each in theirs["env"]} <= {each["name"] for each in mine["env"]}
    told, driven = ({each["name"]: each.get("value") for each in env} for env in (mine["env"], theirs["env"]))
    assert json.loads(told["GIORNATA_KINDS"]) == json.loads(driven["GIORNATA_KINDS"])
    assert told["GIORNATA_PLACES"] == driven["GIORNATA_PLACES"]
    grace_s = float(told["GIORNATA_GRACE_S"])
    assert made["terminationGracePeriodSeconds"] > grace_s
    assert made["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"secret": {}}, "secret.GIORNATA_ADMIN_KEY is not set"),
        ({"secret": {"GIORNATA_ADMIN_KEY": "gk_"}}, "secret.GIORNATA_SECRETS_KEY is not set"),
        ({"persistence": {"enabled": True}}, "SQLite takes one server"),
        ({"server": {"replica": 2}}, "replica"),
        ({"secret": SECRET | {"GIORNATA_ADMIN_KEY": 7}}, "GIORNATA_ADMIN_KEY"),
    ],
)
def test_values_that_cannot_work_are_refused_before_anything_is_installed(change: dict[str, Any], said: str) -> None:
    chart = helm.Chart.load(CHART)
    values = CLUSTER | change
    with pytest.raises(helm.HelmError, match=said):
        chart.validate_schema(values)
        chart.render(values, name="atelier", namespace="painting")
