"""One Ray for all tests of pre-training that need a real one. Eight logical CPUs: trainers, encoders and Ray Data's
tasks each reserve one, on however few cores there are."""

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import ray
import ray.data
from tests.system.pretrain.clusters import RayCluster, ray_cluster

LOGICAL_CPUS = 8
OBJECT_STORE_BYTES = 200 << 20
PATIENCE_S = 900


@pytest.fixture(scope="session", name="ray")
def ray_of_the_tests() -> Iterator[ModuleType]:
    """A Ray of this test session's own, ended with it; the value is the module `ray`."""
    # Ray's sockets lie below its folder, and a socket's path may have 107 bytes: pytest's folders are too deep.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            num_cpus=LOGICAL_CPUS,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _temp_dir=str(Path(folder)),
        )
        quiet_data()
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster of one node, to which tests add others; ended with the file's last test."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        ray_cluster(Path(folder)) as it,
    ):
        yield it


def quiet_data() -> None:
    """No progress bars, and no advice."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for Ray and its workers to start, which takes minutes where many share the cores."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_S))
