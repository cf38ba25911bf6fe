"""What a cluster would refuse is refused when the server starts, with every fault."""

import pytest

from giornata.domain.errors import InvalidInput
from giornata.fleets.kubernetes.options import KubernetesOptions
from giornata.fleets.opening import open_driver, read_options

EXISTS = {"key": "gpu", "operator": "Exists"}
REFUSED = [
    ({"memory": "a lot"}, "options.memory", "'a lot' is no Kubernetes quantity"),
    ({"memory": "24GB"}, "options.memory", "'24GB' is no Kubernetes quantity"),
    ({"memory": "24 Gi"}, "options.memory", "no Kubernetes quantity"),
    ({"memory": "24"}, "options.memory", "'24' is less than 64Mi: bytes are expected, with a unit as in 24Gi"),
    ({"cache_size": "big"}, "options.cache_size", "no Kubernetes quantity"),
    ({"cpu": "0"}, "options.cpu", "more than 0 is expected"),
    ({"cpu": "nan"}, "options.cpu", "no Kubernetes quantity"),
    (
        {"tolerations": [EXISTS | {"value": "x"}]},
        "options.tolerations.0",
        "with the operator Exists there is no value",
    ),
    ({"tolerations": [EXISTS | {"effect": "NoSchedul"}]}, "options.tolerations.0", "effect: "),
    ({"tolerations": [{"keys": "gpu"}]}, "options.tolerations.0", "keys: "),
    ({"tolerations": [{}]}, "options.tolerations.0", "without a key the operator has to be Exists"),
    ({"tolerations": [EXISTS | {"tolerationSeconds": 5}]}, "options.tolerations.0", "the effect NoExecute alone"),
    ({"node_selector": {"a pool": "x"}}, "options.node_selector", "pattern"),
    ({"node_selector": {"pool": "not a label"}}, "options.node_selector", "pattern"),
    ({"gpu_resource": "a gpu"}, "options.gpu_resource", "pattern"),
    ({"image_pull_secrets": ["My Secret"]}, "options.image_pull_secrets.0", "pattern"),
]


@pytest.mark.parametrize(("options", "where", "why"), REFUSED, ids=lambda each: str(each)[:50])
def test_an_option_that_the_cluster_would_refuse_is_refused_at_start(options, where, why):
    with pytest.raises(InvalidInput) as caught:
        read_options(open_driver("kubernetes", where="gpu"), options, where="options")
    (fault,) = caught.value.faults
    assert fault.where.startswith(where)
    assert why in fault.message


TAKEN = [
    {"memory": "24Gi", "cpu": "500m", "cache_size": "60G"},
    {"memory": "1e11", "cpu": ".5"},
    {"tolerations": [{"operator": "Exists"}]},
    {"tolerations": [{"key": "a.example/gpu", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 30}]},
    {"node_selector": {"cloud.google.com/gke-spot": "true"}, "image_pull_secrets": ["registry.example"]},
]


@pytest.mark.parametrize("options", TAKEN, ids=str)
def test_valid_kubernetes_options_round_trip_unchanged(options):
    given = KubernetesOptions.model_validate(options).model_dump(include=set(options), mode="json")
    assert given == options
