"""The dozen calls that the driver makes of a cluster, and what their failures mean.

The server's ServiceAccount needs a Role with exactly these verbs (`deploy/kubernetes/server-rbac.yaml`).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import urllib3.exceptions
from kubernetes.client import ApiClient, AppsV1Api, CoreV1Api
from kubernetes.client.exceptions import ApiException

from giornata.domain.errors import FleetRefused, FleetUnavailable
from giornata.fleets.kubernetes_pods import Pod

MERGE_PATCH = "application/merge-patch+json"


class Missing(Exception):
    """404: there is no such object."""


class Taken(Exception):
    """409: the name is taken, or the object is not the one, or not in the version, that was meant."""


class Expired(Exception):
    """410: the rest of a list can no longer be read; begin again."""


@dataclass(slots=True, kw_only=True)
class Calls:
    """A namespace, and the workload by name in it. Every call raises FleetUnavailable and FleetRefused."""

    client: ApiClient
    namespace: str
    kind: Literal["Deployment", "StatefulSet"]
    name: str
    timeout_s: float = 20.0
    page: int = 500

    @property
    def described(self) -> str:
        """For messages."""
        return f"{self.kind} {self.namespace}/{self.name}"

    def scale(self) -> int:
        """How many pods the workload is to have. Raises Missing."""
        return int(self._workload_call("read_namespaced_{}_scale", self.name, self.namespace).spec.replicas or 0)

    def set_scale(self, nodes: int) -> None:
        """Say how many it is to have. Raises Missing."""
        body = {"spec": {"replicas": nodes}}
        self._workload_call("patch_namespaced_{}_scale", self.name, self.namespace, body, _content_type=MERGE_PATCH)

    def workload(self) -> Any:
        """The V1Deployment or V1StatefulSet. Raises Missing."""
        return self._workload_call("read_namespaced_{}", self.name, self.namespace)

    def create_workload(self, manifest: Mapping[str, Any]) -> None:
        """Make it. Raises Taken when it is there."""
        self._workload_call("create_namespaced_{}", self.namespace, dict(manifest))

    def renew_workload(self, there: Any, manifest: Mapping[str, Any], *, at_once: bool = False) -> None:
        """Give the workload, as it was read, the manifest's pods. FleetUnavailable when it was changed since.

        `at_once`: a Deployment replaces all of its pods together, and not one after the other.
        """
        body = self.client.sanitize_for_serialization(there)  # type: ignore[no-untyped-call]
        body["metadata"]["annotations"] = (
            body["metadata"].get("annotations", {}) | manifest["metadata"]["annotations"]
        )
        body["spec"]["template"] = manifest["spec"]["template"]
        if (strategy := manifest["spec"].get("strategy")) is not None:
            rolling = strategy["rollingUpdate"] | ({"maxUnavailable": "100%"} if at_once else {})
            body["spec"]["strategy"] = strategy | {"rollingUpdate": rolling}
        # The whole object, not a patch: a patch would keep what the new pods leave out.
        try:
            self._workload_call("replace_namespaced_{}", self.name, self.namespace, body)
        except Taken:
            raise FleetUnavailable(f"{self.described} was changed at the same time") from None

    def pods(self, label_selector: str) -> list[Pod]:
        """All of them, page by page. Raises Expired."""
        found: list[Pod] = []
        token: str | None = None
        while True:
            page = self._call(
                CoreV1Api(self.client).list_namespaced_pod,
                self.namespace,
                label_selector=label_selector,
                limit=self.page,
                _continue=token,
            )
            found += page.items
            token = page.metadata.var_continue
            if not token:
                return found

    def annotate_pod(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of the pod; None takes one away. Raises Missing, and Taken when the name is another's."""
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": dict(annotations)}}
        patch = CoreV1Api(self.client).patch_namespaced_pod
        self._call(patch, pod.metadata.name, self.namespace, body, _content_type=MERGE_PATCH)

    def delete_pod(self, pod: Pod) -> None:
        """With the pod's own grace. Raises Missing, and Taken when the name is another's."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.metadata.uid}}
        self._call(CoreV1Api(self.client).delete_namespaced_pod, pod.metadata.name, self.namespace, body=body)

    def evict_pod(self, pod: Pod) -> None:
        """Delete it as far as disruption budgets allow. Raises Missing, and Taken when the name is another's."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.metadata.name, "namespace": self.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.metadata.uid}},
        }
        evict = CoreV1Api(self.client).create_namespaced_pod_eviction
        self._call(evict, pod.metadata.name, self.namespace, body)

    def close(self) -> None:
        """Let go of connections."""
        self.client.close()  # type: ignore[no-untyped-call]
        self.client.rest_client.pool_manager.clear()

    def _workload_call(self, method: str, *arguments: Any, **named: Any) -> Any:
        word = {"Deployment": "deployment", "StatefulSet": "stateful_set"}[self.kind]
        return self._call(getattr(AppsV1Api(self.client), method.format(word)), *arguments, **named)

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        given = {name: value for name, value in named.items() if value is not None}
        with _translated():
            return method(*arguments, **given, _request_timeout=(min(5.0, self.timeout_s), self.timeout_s))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        raise _meaning(error) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise FleetUnavailable(f"the cluster cannot be reached: {error}") from error
    except ValueError as error:  # 200 with something that is no object of the API: a proxy in between
        raise FleetUnavailable(f"the cluster's answer cannot be read: {str(error)[:200]}") from error


def _meaning(error: ApiException) -> Exception:
    status, said = error.status or 0, _message(error)
    named: Exception | None = {404: Missing(said), 409: Taken(said), 410: Expired(said)}.get(status)
    if status == 422 and "metadata.uid" in _fields(error):  # how a patch of what is another object now is refused
        named = Taken(said)
    if named is not None:
        return named
    if status == 429 or status >= 500 or status < 400:
        return FleetUnavailable(f"the cluster says {status}: {said}", retry_after_s=_retry_after_s(error))
    return FleetRefused(f"the cluster says {status}: {said}")


def _message(error: ApiException) -> str:
    """The Status object's message, or the beginning of whatever came."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.body or error.reason)[:200]


def _fields(error: ApiException) -> frozenset[str]:
    """The fields that a Status object finds fault with."""
    try:
        return frozenset(str(each["field"]) for each in json.loads(error.body or "")["details"]["causes"])
    except (ValueError, KeyError, TypeError):
        return frozenset()


def _retry_after_s(error: ApiException) -> float | None:
    try:
        return max(0.0, float((error.headers or {}).get("Retry-After", "")))
    except ValueError:
        return None
