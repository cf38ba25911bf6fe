"""How the server finds its cluster."""

import json

import pytest

from giornata.domain.errors import InvalidInput
from giornata.fleets.kubernetes.calls import open_cluster
from giornata.fleets.kubernetes.options import KubernetesOptions


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="kubeconfig"):
        open_cluster(KubernetesOptions(kubeconfig=tmp_path / "nothing"), {})
    with pytest.raises(InvalidInput, match="kubeconfig"):  # a pod that was given no token
        open_cluster(KubernetesOptions(), {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"})


def test_a_kubeconfig_says_where_and_in_which_namespace(tmp_path):
    file = tmp_path / "config"
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "one",
        "clusters": [{"name": "c", "cluster": {"server": "https://cluster.example"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [
            {"name": name, "context": {"cluster": "c", "user": "u", "namespace": f"of-{name}"}}
            for name in ("one", "two")
        ],
    }  # fmt: skip
    file.write_text(json.dumps(config))
    cluster = open_cluster(KubernetesOptions(), {"KUBECONFIG": str(file)})
    assert cluster.client.configuration.host == "https://cluster.example"
    assert cluster.namespace == "of-one"
    assert open_cluster(KubernetesOptions(kubeconfig=file, context="two"), {}).namespace == "of-two"
    assert open_cluster(KubernetesOptions(kubeconfig=file, namespace="mine"), {}).namespace == "mine"
