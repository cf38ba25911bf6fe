"""The kubernetes driver with a StatefulSet, on the strict API server for tests."""

from contextlib import AbstractContextManager
from pathlib import Path

from tests.contract.fleets.under_test import WORK
from tests.fixtures.kubernetes_under_test import KubernetesUnderTest, strict_cluster


def opened(directory: Path) -> AbstractContextManager[KubernetesUnderTest]:
    return strict_cluster(directory, page=2, work=WORK, workload_kind="StatefulSet")
