"""What of a pod, or of a workload's template, is not as the settings describe it."""

from collections.abc import Mapping
from typing import Any

from kubernetes.client import ApiClient

from giornata.fleets.kubernetes_pods import CONTAINER
from giornata.fleets.kubernetes_workload import TEMPLATE_DIGEST


def digest_of(metadata: Any) -> str | None:
    """Of which settings the object is; None when it says nothing. Of a manifest, or of an object that was read."""
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
