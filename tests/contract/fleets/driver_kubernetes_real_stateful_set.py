"""The kubernetes driver with a StatefulSet on a real API server, where there is one to run."""

from contextlib import AbstractContextManager
from pathlib import Path

from tests.fixtures.kubernetes_real import real_cluster
from tests.fixtures.kubernetes_under_test import KubernetesUnderTest


def opened(directory: Path) -> AbstractContextManager[KubernetesUnderTest]:
    return real_cluster(directory, workload_kind="StatefulSet")
