"""Fleets on Kubernetes: on the strict API server and, where there is one, on a real one."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.fixtures.kubernetes_real import VARIABLE, real_cluster
from tests.fixtures.kubernetes_under_test import KubernetesUnderTest, dependencies, strict_cluster

from giornata.fleets.kubernetes.driver import fleet_on
from giornata.fleets.kubernetes.options import KubernetesOptions

CLUSTERS = {"strict": strict_cluster}
if VARIABLE in os.environ:  # otherwise there is nothing that it could run on
    CLUSTERS["real"] = real_cluster


@pytest.fixture(params=CLUSTERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path):
    def one(**options):
        return CLUSTERS[request.param](tmp_path, **options)

    return one


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[KubernetesUnderTest]:
    with strict_cluster(tmp_path) as it:
        yield it


@pytest.fixture
def opened_strict(tmp_path: Path):
    """Where the cluster is to do what no real one can be made to do here."""
    return partial(strict_cluster, tmp_path)


def raised(it: KubernetesUnderTest, nodes: int) -> list[str]:
    it.fleet.desired(nodes)
    it.settle()
    return [each.id for each in it.fleet.list()]


def workload(it: KubernetesUnderTest, plural: str = "deployments") -> dict:
    (only,) = it.api.workloads(plural)
    return only


def another(it: KubernetesUnderTest, tmp_path: Path, **options):
    """The fleet after a restart of the server with other options."""
    given = KubernetesOptions.model_validate({"image": "registry.example/giornata-node:1"} | options)
    return fleet_on(it.fleet.calls.client, it.api.namespace, "gpu", given, dependencies(tmp_path))
