"""The Deployment or StatefulSet of a fleet, as its options describe it."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from giornata.fleets.kubernetes_options import FLEET_LABEL, Options
from giornata.fleets.kubernetes_pods import CONTAINER

TEMPLATE_DIGEST = "giornata/template-sha256"
KILLED_AFTER_GRACE_S = 15  # the agent has left by then, or never will
SCRATCH = "/var/lib/giornata"
MODELS = "/models"


def workload_of(
    fleet: str, name: str, options: Options, told: Callable[[], Mapping[str, str]], nodes: int
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
        # Should somebody change the template while there are pods: one after the other, and none is at work twice.
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


def _pod(options: Options, environment: list[dict[str, Any]]) -> dict[str, Any]:
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


def _container(options: Options, environment: list[dict[str, Any]]) -> dict[str, Any]:
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


def _environment(options: Options, told: Mapping[str, str]) -> list[dict[str, Any]]:
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


def _volumes(options: Options) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "scratch", "emptyDir": {"sizeLimit": options.cache_size}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
    ]
    if options.cache_claim:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": options.cache_claim}})
    return volumes
