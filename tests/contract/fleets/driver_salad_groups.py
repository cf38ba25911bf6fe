"""The driver of SaladCloud where a fleet needs several container groups: each has at most two replicas."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract.fleets import driver_salad


@contextmanager
def opened(directory: Path) -> Iterator[driver_salad.SaladUnderTest]:
    with driver_salad.opened(directory, most_each=2) as under_test:
        yield under_test
