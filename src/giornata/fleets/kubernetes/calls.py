"""The dozen calls that the driver makes of a cluster, and what their failures mean.

The server's ServiceAccount needs a Role with exactly these verbs (`deploy/kubernetes/server-rbac.yaml`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import urllib3
from kubernetes.client import ApiClient, AppsV1Api, Configuration, CoreV1Api, VersionApi
from kubernetes.config import ConfigException
from kubernetes.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_HOST_ENV_NAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)
from kubernetes.config.kube_config import list_kube_config_contexts, load_kube_config

from giornata.domain.errors import Fault, FleetRefused, FleetUnavailable, InvalidInput
from giornata.fleets.kubernetes.errors import ObjectConflict, translated
from giornata.fleets.kubernetes.options import KubernetesOptions
from giornata.fleets.kubernetes.pods import Pod

MERGE_PATCH = "application/merge-patch+json"
FIELD_MANAGER = "giornata"
# Since then deletion costs count, and evictions are of policy/v1.
LEAST_VERSION = (1, 22)


@dataclass(slots=True, kw_only=True)
class Calls:
    """A namespace, and the workload by name in it. Every call raises FleetUnavailable and FleetRefused."""

    client: ApiClient
    namespace: str
    kind: Literal["Deployment", "StatefulSet"]
    name: str
    timeout_s: float = 20.0
    page: int = 500
    version: tuple[int, int] | None = None  # None: it was not asked for yet

    @property
    def described(self) -> str:
        """The workload's kind, namespace and name, for messages."""
        return f"{self.kind} {self.namespace}/{self.name}"

    def check_version(self) -> None:
        """Check the cluster's version. Raises FleetRefused for a cluster that is too old.

        A cluster is asked once; a cluster that does not tell its version is accepted.
        """
        if self.version is None:
            self.version = self._version()
        if self.version < LEAST_VERSION:
            found, least = (".".join(map(str, each)) for each in (self.version, LEAST_VERSION))
            raise FleetRefused(
                f"the cluster runs Kubernetes {found}, and {least} is the least version that is supported: older "
                "ones ignore which pods are to leave, and evict none by policy/v1; upgrade the cluster"
            )

    def _version(self) -> tuple[int, int]:
        try:
            code = self._call(VersionApi(self.client).get_code)
            return int(code.major), int("".join(filter(str.isdigit, code.minor)))  # "22+" of some clouds
        except (FleetRefused, ValueError):
            return LEAST_VERSION

    def set_scale(self, nodes: int) -> None:
        """Say how many it is to have. Raises Missing."""
        body = {"spec": {"replicas": nodes}}
        patch = "patch_namespaced_{}_scale"
        self._change_workload(patch, self.name, self.namespace, body, _content_type=MERGE_PATCH)

    def workload(self) -> Any:
        """The V1Deployment or V1StatefulSet. Raises Missing."""
        return self._workload_call("read_namespaced_{}", self.name, self.namespace)

    def create_workload(self, manifest: Mapping[str, Any]) -> None:
        """Make it. Raises ObjectConflict when it is there."""
        self._change_workload("create_namespaced_{}", self.namespace, dict(manifest))

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
            self._change_workload("replace_namespaced_{}", self.name, self.namespace, body)
        except ObjectConflict:
            raise FleetUnavailable(f"{self.described} was changed at the same time") from None

    def pods(self, label_selector: str, field_selector: str) -> list[Pod]:
        """List all selected pods, page by page. Raises Expired."""
        found: list[Pod] = []
        token: str | None = None
        while True:
            page = self._call(
                CoreV1Api(self.client).list_namespaced_pod,
                self.namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=self.page,
                _continue=token,
            )
            found += page.items
            token = page.metadata.var_continue
            if not token:
                return found

    def warnings(self) -> list[Any]:
        """The latest events that warn of the workload itself, at most a page of them."""
        about = f"involvedObject.kind={self.kind},involvedObject.name={self.name},type=Warning"
        events = CoreV1Api(self.client).list_namespaced_event
        return list(self._call(events, self.namespace, field_selector=about, limit=self.page).items)

    def annotate_pod(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of the pod; None removes one. Raises Missing, or ObjectConflict for another pod."""
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": dict(annotations)}}
        patch = CoreV1Api(self.client).patch_namespaced_pod
        self._call(patch, pod.metadata.name, self.namespace, body, _content_type=MERGE_PATCH)

    def delete_pod(self, pod: Pod) -> None:
        """Delete a pod with the pod's own grace. Raises Missing, and ObjectConflict when the name is another's."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.metadata.uid}}
        self._call(CoreV1Api(self.client).delete_namespaced_pod, pod.metadata.name, self.namespace, body=body)

    def evict_pod(self, pod: Pod) -> None:
        """Delete it as far as disruption budgets allow. Raises Missing, and ObjectConflict for another pod."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.metadata.name, "namespace": self.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.metadata.uid}},
        }
        evict = CoreV1Api(self.client).create_namespaced_pod_eviction
        self._call(evict, pod.metadata.name, self.namespace, body)

    def close(self) -> None:
        """Close all connections to the API server."""
        self.client.close()  # type: ignore[no-untyped-call]
        self.client.rest_client.pool_manager.clear()

    def _workload_call(self, method: str, *arguments: Any, **named: Any) -> Any:
        word = {"Deployment": "deployment", "StatefulSet": "stateful_set"}[self.kind]
        return self._call(getattr(AppsV1Api(self.client), method.format(word)), *arguments, **named)

    def _change_workload(self, method: str, *arguments: Any, **named: Any) -> None:
        # The cluster notes by this name who set the number of pods.
        self._workload_call(method, *arguments, field_manager=FIELD_MANAGER, **named)

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        given = {name: value for name, value in named.items() if value is not None}
        with translated(self.client.configuration.host, timeout_s=self.timeout_s):
            return method(*arguments, **given, _request_timeout=(min(5.0, self.timeout_s), self.timeout_s))


NAMESPACE_FILE = Path(SERVICE_TOKEN_FILENAME).with_name("namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """A client that tries each call once, and the namespace to work in."""

    client: ApiClient
    namespace: str


def open_cluster(options: KubernetesOptions, environment: Mapping[str, str]) -> ClusterAccess:
    """Connect by the options' kubeconfig, else as a pod of the cluster, else by `KUBECONFIG` or the user's own file.

    Raises InvalidInput when there is nothing of these, or it cannot be read.
    """
    configuration = Configuration()
    try:
        if options.kubeconfig is None and options.context is None and environment.get(SERVICE_HOST_ENV_NAME):
            namespace = _of_the_pod(configuration, environment)
        else:
            namespace = _of_a_file(configuration, options, environment)
    except (ConfigException, OSError) as error:
        hint = "name a kubeconfig, or run the server in the cluster with a ServiceAccount"
        raise InvalidInput([Fault(where="kubeconfig", message=str(error), hint=hint)]) from None
    # The loops of the fleet try again by themselves, and wait as long as the cluster asks for.
    configuration.retries = urllib3.Retry(0, redirect=0, raise_on_status=False)
    return ClusterAccess(client=ApiClient(configuration), namespace=options.namespace or namespace or "default")


def _of_the_pod(configuration: Configuration, environment: Mapping[str, str]) -> str:
    loader = InClusterConfigLoader(  # type: ignore[no-untyped-call]
        token_filename=SERVICE_TOKEN_FILENAME, cert_filename=SERVICE_CERT_FILENAME, environ=environment
    )
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.is_file() else ""


def _of_a_file(configuration: Configuration, options: KubernetesOptions, environment: Mapping[str, str]) -> str:
    file = str(options.kubeconfig or environment.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    load_kube_config(  # type: ignore[no-untyped-call]
        file, context=options.context, client_configuration=configuration, persist_config=False
    )
    contexts, active = list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
    chosen = next((each for each in contexts if each["name"] == options.context), active)
    return str(chosen["context"].get("namespace") or "")
