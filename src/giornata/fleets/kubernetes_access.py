"""How the server reaches a cluster: as a pod of it, or by a kubeconfig."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import urllib3
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException
from kubernetes.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_HOST_ENV_NAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)
from kubernetes.config.kube_config import list_kube_config_contexts, load_kube_config

from giornata.domain.errors import Fault, InvalidInput
from giornata.fleets.kubernetes_options import Options

NAMESPACE_FILE = Path(SERVICE_TOKEN_FILENAME).with_name("namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A client that tries each call once, and the namespace to work in."""

    client: ApiClient
    namespace: str


def open_cluster(options: Options, environment: Mapping[str, str]) -> Cluster:
    """By the options' kubeconfig, else as a pod of the cluster, else by `KUBECONFIG` or the user's own file.

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
    return Cluster(client=ApiClient(configuration), namespace=options.namespace or namespace or "default")


def _of_the_pod(configuration: Configuration, environment: Mapping[str, str]) -> str:
    loader = InClusterConfigLoader(  # type: ignore[no-untyped-call]
        token_filename=SERVICE_TOKEN_FILENAME, cert_filename=SERVICE_CERT_FILENAME, environ=environment
    )
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.is_file() else ""


def _of_a_file(configuration: Configuration, options: Options, environment: Mapping[str, str]) -> str:
    file = str(options.kubeconfig or environment.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    load_kube_config(  # type: ignore[no-untyped-call]
        file, context=options.context, client_configuration=configuration, persist_config=False
    )
    contexts, active = list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
    chosen = next((each for each in contexts if each["name"] == options.context), active)
    return str(chosen["context"].get("namespace") or "")
