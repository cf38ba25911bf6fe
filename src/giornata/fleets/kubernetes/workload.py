"""The Deployment or StatefulSet of a fleet, as its options describe it."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from kubernetes.client import ApiClient

from giornata.fleets.kubernetes.options import FLEET_LABEL, KubernetesOptions
from giornata.fleets.kubernetes.pods import CONTAINER
from giornata.fleets.opening import KINDS, PLACES, NodeWork

TEMPLATE_DIGEST = "giornata/template-sha256"
KILLED_AFTER_GRACE_S = 15  # the agent has left by then, or never will
SCRATCH = "/var/lib/giornata"
MODELS = "/models"


def workload_of(
    fleet: str, name: str, options: KubernetesOptions, told: Callable[[], Mapping[str, str]], nodes: int
) -> dict[str, Any]:
    """The manifest, for so many nodes. `told` has the variables of the server and of the work."""
    labels = {
        "app.kubernetes.io/name": "giornata-node",
        "app.kubernetes.io/managed-by": "giornata",
        FLEET_LABEL: fleet,
    }
    template: dict[str, Any] = {
        "metadata": {"labels": labels},
        "spec": _pod(options, _environment(options, told())),
    }
    spec: dict[str, Any] = {
        "replicas": nodes,
        "selector": {"matchLabels": {FLEET_LABEL: fleet}},
        "template": template,
    }
    if options.workload_kind == "Deployment":
        # If the template changes while there are pods, they are replaced one by one, and no job runs twice.
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
        spec["revisionHistoryLimit"] = 2
    else:
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel", "updateStrategy": {"type": "OnDelete"}}
    digest = {TEMPLATE_DIGEST: hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()}
    template["metadata"] |= {"annotations": dict(digest)}  # every pod says of which settings it is
    return {
        "apiVersion": "apps/v1",
        "kind": options.workload_kind,
        "metadata": {"name": name, "labels": labels, "annotations": digest},
        "spec": spec,
    }


def _pod(options: KubernetesOptions, environment: list[dict[str, Any]]) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": options.grace_s + KILLED_AFTER_GRACE_S,
        "automountServiceAccountToken": False,  # a node runs strangers' work: nothing of the cluster is in it
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": options.run_as,
            "runAsGroup": options.run_as,
            "fsGroup": options.run_as,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(options, environment)],
        "volumes": _volumes(options),
    }
    if options.tolerations:
        pod["tolerations"] = [dict(each) for each in options.tolerations]
    if options.node_selector:
        pod["nodeSelector"] = dict(options.node_selector)
    if options.priority_class:
        pod["priorityClassName"] = options.priority_class
    if options.service_account:
        pod["serviceAccountName"] = options.service_account
    if options.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": each} for each in options.image_pull_secrets]
    return pod


def _container(options: KubernetesOptions, environment: list[dict[str, Any]]) -> dict[str, Any]:
    asked = {"cpu": options.cpu, "memory": options.memory, "ephemeral-storage": options.cache_size}
    bounds = {"memory": options.memory}
    if options.gpus:
        bounds[options.gpu_resource] = str(options.gpus)
        asked[options.gpu_resource] = str(options.gpus)
    mounts = [{"name": "scratch", "mountPath": SCRATCH}, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108
    if options.cache_claim:
        mounts.append({"name": "models", "mountPath": MODELS})
    return {
        "name": CONTAINER,
        "image": options.image,
        "args": ["node"],
        "env": environment,
        "resources": {"requests": asked, "limits": bounds},
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": not options.models_in_image,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _environment(options: KubernetesOptions, told: Mapping[str, str]) -> list[dict[str, Any]]:
    plain = {
        **told,
        "GIORNATA_PRICE_USD_PER_HOUR": f"{options.price_usd_per_hour:g}",
        "GIORNATA_GRACE_S": str(options.grace_s),
        "GIORNATA_DATA": SCRATCH,
    }
    if options.cache_claim or not options.models_in_image:
        plain["HF_HOME"] = MODELS if options.cache_claim else f"{SCRATCH}/models"
    fields = {
        "GIORNATA_INSTANCE_ID": "metadata.uid",
        "GIORNATA_NODE_NAME": "metadata.name",
        "GIORNATA_MACHINE_ID": "spec.nodeName",
    }
    key = {"name": options.node_key_secret, "key": options.node_key_field}
    return [
        *({"name": name, "value": value} for name, value in (plain | options.environment).items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        {"name": "GIORNATA_NODE_KEY", "valueFrom": {"secretKeyRef": key}},
    ]


def _volumes(options: KubernetesOptions) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "scratch", "emptyDir": {"sizeLimit": options.cache_size}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
    ]
    if options.cache_claim:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": options.cache_claim}})
    return volumes


def digest_of(metadata: Any) -> str | None:
    """Return the digest of its settings that an object carries, if any. The object is a manifest, or was read."""
    found = metadata.get("annotations") if isinstance(metadata, Mapping) else metadata.annotations
    return (found or {}).get(TEMPLATE_DIGEST)


def differences(client: ApiClient, pod_spec: Any, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the settings in which a V1PodSpec differs. The cluster fills in defaults: what cannot be told apart
    is `pod`."""
    had: Mapping[str, Any] = client.sanitize_for_serialization(pod_spec)  # type: ignore[no-untyped-call]
    wanted = manifest["spec"]["template"]["spec"]
    there, asked = _node(had), _node(wanted)
    found = ["image"] if there.get("image") != asked.get("image") else []
    env, env_asked = _env(there), _env(asked)
    names = sorted({*env, *env_asked})
    found += [f"env.{name}" for name in names if _plain(env.get(name)) != _plain(env_asked.get(name))]
    found += ["resources"] if there.get("resources") != asked.get("resources") else []
    found += ["node_selector"] if (had.get("nodeSelector") or {}) != (wanted.get("nodeSelector") or {}) else []
    return tuple(found or ["pod"])


def _node(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = spec.get("containers") or [{}]
    named: list[Mapping[str, Any]] = [each for each in containers if each.get("name") == CONTAINER]
    return (named or containers)[0]


def _env(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return {each["name"]: each for each in container.get("env") or ()}


def _plain(variable: Mapping[str, Any] | None) -> Any:
    """A value, or the reference without what the cluster fills in."""
    if variable is None or "valueFrom" not in variable:
        return None if variable is None else variable.get("value") or ""
    (kind, reference), *_ = variable["valueFrom"].items()
    return kind, {key: value for key, value in reference.items() if key != "apiVersion"}


ARGUMENTS = {KINDS: "--kind", PLACES: "--places"}


def missing_in_pods(workload: Any, work: NodeWork) -> str:
    """The variables that the container has to have, as NAME='VALUE'; empty when pods take the work. What comes from a
    ConfigMap or a Secret, or is said by an argument, is not looked into."""
    containers = workload.spec.template.spec.containers
    node = next((each for each in containers if each.name == CONTAINER), containers[0])
    had = {each.name: each for each in node.env or ()}
    plain = {name: each.value or "" for name, each in had.items()}
    words = [*(node.command or ()), *(node.args or ())]
    wanted = work.environment("")
    for name, argument in ARGUMENTS.items():
        elsewhere = had[name].value_from if name in had else node.env_from
        if elsewhere or any(word.startswith(argument) for word in words):
            plain[name] = wanted[name]
    return " ".join(work.missing_in(plain))
