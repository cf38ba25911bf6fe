"""The kubernetes driver with a StatefulSet on a real API server, where there is one to run."""

from contextlib import AbstractContextManager
from pathlib import Path

from tests.contract.fleets.under_test import WORK
from tests.fixtures.kubernetes_real import real_cluster
from tests.fixtures.kubernetes_under_test import KubernetesUnderTest


def opened(directory: Path) -> AbstractContextManager[KubernetesUnderTest]:
    return real_cluster(directory, work=WORK, workload_kind="StatefulSet")
