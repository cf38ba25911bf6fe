"""What is in `deploy/`: linted by tools that know the formats, and its values compared with the code's."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.fixtures.kubernetes_schemas import rule_faults, schema_faults
from tools.image_lock import EXTRAS, HEAD, MACHINES
from tools.image_lock import locked as lock_of

from giornata.api.health import health_routes
from giornata.cli.settings import Settings
from giornata.cli.settings.settings import OLD_NAMES
from giornata.fleets.kubernetes.options import KubernetesOptions
from giornata.fleets.kubernetes.workload import workload_of
from giornata.fleets.opening import NodeWork
from giornata.fleets.skypilot.task import NodeFacts, task_of
from giornata.fleets.skypilot.task import SkyPilotOptions as SkyOptions

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VARIABLE = re.compile(r"\bGIORNATA_[A-Z0-9_]+")
CUDA = ("nvidia-", "cuda-", "triton")
"""What torch brings on machines with a GPU. torch names the versions of these, and tests run without them."""
NOT_SETTINGS = {"GIORNATA_SECRETS_KEY:?a"}
HEAVY = {"torch", "torchvision", "diffusers", "transformers", "numpy", "ray", "accelerate", "nvidia-cublas"}


def tool(name: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    assert program, f"{name} is not installed"
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


def documents() -> list[dict[str, Any]]:
    return [each for file in MANIFESTS for each in yaml.safe_load_all(file.read_text()) if each]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in documents() if each["kind"] == kind]


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_dockerfiles_pass_hadolint(file):
    done = tool("hadolint", "--failure-threshold", "info", file)
    assert done.returncode == 0, done.stdout


def test_hadolint_finds_what_is_wrong(tmp_path):
    file = tmp_path / "bad.Dockerfile"
    file.write_text("FROM python\nRUN cd /tmp && sudo pip install torch\n")
    assert tool("hadolint", file).returncode != 0


def test_the_compose_file_is_one():
    done = tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stdout


def test_a_compose_file_with_a_wrong_field_is_found(tmp_path):
    wrong = compose()
    wrong["services"]["server"]["restarts"] = "always"
    file = tmp_path / "compose.yaml"
    file.write_text(yaml.safe_dump(wrong))
    assert tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", file).returncode != 0


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_manifests_are_what_kubernetes_published_schemas_say(file):
    for document in yaml.safe_load_all(file.read_text()):
        kind, version = document["kind"], document["apiVersion"]
        assert schema_faults(document, kind=kind, api_version=version) == [], kind
        assert rule_faults(document) == [], kind


def test_a_manifest_with_a_wrong_field_is_found():
    (deployment,) = [each for each in of_kind("Deployment") if each["metadata"]["name"] == "giornata-server"]
    deployment["spec"]["template"]["spec"]["terminationGraceSeconds"] = 5
    assert schema_faults(deployment, kind="Deployment", api_version="apps/v1")


def told() -> dict[str, str]:
    return {"GIORNATA_URL": "https://giornata.example"} | NodeWork().environment("gpu")


def test_every_variable_that_is_set_is_a_setting():
    known = {f"GIORNATA_{name.upper()}" for name in (*Settings.model_fields, *OLD_NAMES)}
    texts = {
        str(file.relative_to(ROOT)): file.read_text() for file in [*DOCKERFILES, *MANIFESTS, DEPLOY / "compose.yaml"]
    }
    options = KubernetesOptions(image="it", cache_claim="models")
    texts["kubernetes driver"] = str(workload_of("gpu", "it", options, told, 1))
    texts["skypilot driver"] = str(
        task_of("it", SkyOptions(), (), NodeFacts(fleet="gpu", url="https://it", key="it"))
    )
    unknown = {name: set(VARIABLE.findall(text)) - known for name, text in texts.items()}
    assert {name: found for name, found in unknown.items() if found} == {}
    assert len(VARIABLE.findall(texts["kubernetes driver"])) >= 9
    assert len(VARIABLE.findall(texts["skypilot driver"])) >= 8


def test_the_servers_port_is_one_everywhere():
    port = Settings.model_fields["port"].default
    text = (DEPLOY / "docker/server.Dockerfile").read_text()
    assert f"EXPOSE {port}\n" in text
    assert f"GIORNATA_PORT={port} " in text
    assert f"127.0.0.1:{port}/healthz" in text
    assert compose()["services"]["server"]["ports"] == [f"{port}:{port}"]
    (container,) = server_pod()["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": port}]


def server_pod() -> dict[str, Any]:
    (pod,) = [
        each["spec"]["template"]["spec"]
        for each in of_kind("Deployment")
        if each["metadata"]["name"] == "giornata-server"
    ]
    return pod


def test_probes_ask_what_the_server_answers():
    answered = {route.path for route in health_routes({}, lambda: ()).routes}
    (container,) = server_pod()["containers"]
    asked = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness", "startup")}
    assert asked == {"/healthz", "/readyz"}
    assert asked <= answered
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", "a database that is away kills no server"


def test_images_and_pods_run_as_same_nonroot_user_without_capabilities():
    user = KubernetesOptions.model_fields["run_as"].default
    for file in DOCKERFILES:
        users = re.findall(r"^USER (\S+)$", file.read_text(), re.MULTILINE)
        assert users == [f"{user}:{user}"], file.name
        assert f"--uid {user} " in file.read_text()
    for deployment in of_kind("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == user
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_containers_have_a_read_only_root_and_write_into_volumes_alone():
    for deployment in of_kind("Deployment"):
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"/tmp", "/var/lib/giornata"} <= {each["mountPath"] for each in container["volumeMounts"]}
    for name in ("server", "node-gpu", "node-cpu"):
        service = compose()["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert {"/tmp", "/var/lib/giornata"} <= {each.rpartition(":")[2] for each in service["volumes"]}


def test_no_pod_or_service_has_rights_over_its_host():
    pods = [deployment["spec"]["template"]["spec"] for deployment in of_kind("Deployment")]
    pods.append(workload_of("gpu", "it", KubernetesOptions(image="it"), told, 1)["spec"]["template"]["spec"])
    for pod in pods:
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert pod["securityContext"]["runAsNonRoot"]
        assert not any(each["securityContext"].get("privileged") for each in pod["containers"])
    for name, service in compose()["services"].items():
        assert not {"privileged", "network_mode", "pid", "cap_add"} & set(service), name
        assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))


def test_stop_grace_period_of_node_exceeds_its_own_grace():
    services = compose()["services"]
    for name in ("node-gpu", "node-cpu"):
        assert seconds(services[name]["stop_grace_period"]) > float(services[name]["environment"]["GIORNATA_GRACE_S"])
    for grace_s in (1, 30, 600):
        made = workload_of("gpu", "it", KubernetesOptions(image="it", grace_s=grace_s), told, 1)
        pod = made["spec"]["template"]["spec"]
        env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert env["GIORNATA_GRACE_S"] == str(grace_s)
        assert pod["terminationGracePeriodSeconds"] > grace_s


def test_the_shipped_nodes_are_those_that_the_driver_makes():
    options = KubernetesOptions(image="registry.example/giornata-node:latest", priority_class="giornata-node")
    made = workload_of("gpu", "giornata-gpu", options, told, 0)
    made["metadata"] |= {"namespace": "giornata"}
    for described in (made["metadata"], made["spec"]["template"]["metadata"]):
        del described["annotations"]  # by which the driver knows what it made itself
    (shipped,) = yaml.safe_load_all((DEPLOY / "kubernetes/nodes.yaml").read_text())
    assert shipped == made


def test_names_that_belong_together_are_the_same():
    options, (container,) = KubernetesOptions(), server_pod()["containers"]
    secrets = {each["metadata"]["name"]: each for each in of_kind("Secret")}
    assert options.node_key_field in secrets[options.node_key_secret]["stringData"]
    assert {each["secretRef"]["name"] for each in container["envFrom"]} <= set(secrets)
    assert server_pod()["serviceAccountName"] in {each["metadata"]["name"] for each in of_kind("ServiceAccount")}
    classes = {each["metadata"]["name"] for each in of_kind("PriorityClass")}
    (nodes,) = yaml.safe_load_all((DEPLOY / "kubernetes/nodes.yaml").read_text())
    assert nodes["spec"]["template"]["spec"]["priorityClassName"] in classes
    labels = nodes["spec"]["template"]["metadata"]["labels"]
    budgets = {
        each["metadata"]["name"]: each["spec"]["selector"]["matchLabels"] for each in of_kind("PodDisruptionBudget")
    }
    assert budgets["giornata-nodes"].items() <= labels.items()
    (service,) = of_kind("Service")
    assert service["spec"]["selector"] == budgets["giornata-server"]
    namespaces = {each["metadata"].get("namespace") for each in documents()} - {None}
    assert namespaces == {each["metadata"]["name"] for each in of_kind("Namespace")}


def test_the_shipped_settings_of_the_fleet_are_options_of_the_driver():
    (settings,) = of_kind("ConfigMap")
    table = tomllib.loads(settings["data"]["giornata.toml"])["fleets"]["gpu"]
    assert table["driver"] == "kubernetes"
    assert KubernetesOptions.model_validate(table["options"]).priority_class == "giornata-node"


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """Names of all distributions that an installation of it brings, by the metadata of those that are here."""
    if (name, extras) in seen:
        return set()
    seen.add((name, extras))
    found = {name}
    for line in importlib.metadata.requires(name) or ():
        each = Requirement(line)
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            found |= needed(canonicalize_name(each.name), frozenset(each.extras), seen)
    return found


def extras_of(dockerfile: str) -> frozenset[str]:
    return frozenset(EXTRAS[dockerfile.removesuffix(".Dockerfile")])


def extras_in_project() -> dict[str, list[str]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def brought_by(dockerfile: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in extras_of(dockerfile) for line in extras_in_project()[extra]),
    ]
    seen: set[tuple[str, frozenset[str]]] = set()
    requirements = map(Requirement, wanted)
    return set().union(*(needed(canonicalize_name(each.name), frozenset(each.extras), seen) for each in requirements))


def test_the_servers_image_has_no_torch_and_the_nodes_has():
    server = brought_by("server.Dockerfile")
    assert {"fastapi", "sqlalchemy", "psycopg", "boto3", "kubernetes", "httpx"} <= server
    assert server & HEAVY == set()
    assert {"torch", "diffusers"} <= brought_by("node.Dockerfile")


def locked(image: str) -> dict[str, tuple[str, list[str]]]:
    """The version and the hashes of each distribution of an image."""
    text = (DEPLOY / f"docker/{image}.lock").read_text()
    lines = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    found = {}
    for line in lines.replace(" \\\n", "").splitlines():
        pinned, *hashes = line.split()
        name, version = pinned.split("==")
        found[name] = (version, hashes)
    return found


@pytest.mark.parametrize("image", EXTRAS)
def test_an_image_installs_by_hashes_what_it_needs(image: str):
    dockerfile = (DEPLOY / f"docker/{image}.Dockerfile").read_text()
    installs = re.findall(r"pip install ([^\n\\&]+)", dockerfile)
    assert len(installs) == 2
    assert f"--require-hashes --requirement {image}.lock" in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1], "nothing may come without a hash"
    found = locked(image)
    assert all(hashes for _, hashes in found.values())
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for _, hashes in found.values() for each in hashes)
    assert brought_by(f"{image}.Dockerfile") <= set(found)
    assert "setuptools" in found, "what the package is built with"


def test_the_servers_lock_has_no_torch_and_the_nodes_has_it_with_cuda():
    assert set(locked("server")) & HEAVY == set()
    node = locked("node")
    assert {"torch", "triton", "nvidia-cublas", "nvidia-cudnn-cu13"} <= set(node)
    assert all("+" not in version for version, _ in node.values()), "a build for CPUs alone"
    assert len(node["torch"][1]) == len(MACHINES)


@pytest.mark.parametrize("image", EXTRAS)
def test_a_lock_has_the_versions_that_are_pinned_and_tested(image: str):
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    found = locked(image)
    other = {name for name, (version, _) in found.items() if name in pinned and pinned[name] != version}
    assert other == set(), "write it anew: python -m tools.image_lock"
    unpinned = {name for name in found.keys() - pinned.keys() if not name.startswith(CUDA)}
    assert unpinned == {"setuptools"}


def test_a_lock_is_made_of_the_reports_of_all_machines():
    def report(sha256: str) -> dict[str, Any]:
        archive = {"archive_info": {"hashes": {"sha256": sha256}}}
        return {"install": [{"metadata": {"name": "Some_Thing", "version": "1.2"}, "download_info": archive}]}

    expected = HEAD.format(image="node") + "some-thing==1.2 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    assert lock_of("node", iter([report("bb"), report("aa"), report("bb")])) == expected


def test_dockerfile_copy_sources_exist_and_are_not_dockerignored():
    allowed = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")
    }
    for file in DOCKERFILES:
        copies = re.findall(r"^COPY (?!--from)(.+) \S+$", file.read_text(), re.MULTILINE)
        names = {name for line in copies for name in line.split()}
        assert names <= allowed, file.name
        assert all((ROOT / name).exists() for name in names)


def test_the_guide_names_every_variable_that_compose_wants():
    wanted = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    guide = (ROOT / "docs/how-to/deploy-compose.md").read_text()
    assert {name for name in wanted if name not in guide} == set()
    assert wanted
