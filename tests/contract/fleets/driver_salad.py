"""The driver of SaladCloud, on a fake of it that is held to the published API."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.contract.fleets.under_test import WORK
from tests.fixtures.salad_cloud import SaladCloud
from tests.fixtures.salad_rented import Rented

from giornata.fleets.opening import NodeWork
from giornata.fleets.salad.options import MOST_REPLICAS


class SaladUnderTest:
    """A fleet whose provider's time passes when it waits, and when the test says so."""

    name = "loras"
    reallocation_moves = True
    chooses_who_leaves = True
    gives_nodes = True

    def __init__(self, *, most_each: int = MOST_REPLICAS) -> None:
        self._rented = Rented(SaladCloud(), most_each=most_each, work=WORK)
        self.fleet = self._rented.fleet()

    def change_settings(self) -> None:
        self.fleet.close()
        self.fleet = self._rented.fleet(image="registry.example/giornata-node:2")

    def change_work(self, work: NodeWork) -> None:
        self.fleet.close()
        self._rented.work = work
        self.fleet = self._rented.fleet()

    @contextmanager
    def hold_up(self) -> Iterator[str]:
        self._rented.cloud.most_machines = 0
        yield "the provider counts 3 free machines"
        self._rented.cloud.most_machines = None
        for group in self._rented.cloud.groups.values():
            group.most_machines = None
        self._rented.cloud.advance(1)

    def settle_held_up(self) -> None:
        self._rented.settle()

    def settle(self) -> None:
        self._rented.settle()

    def told(self) -> dict[str, dict[str, str]]:
        group = self._rented.group
        told = group.document["container"]["environment_variables"]
        return {
            each.id: told | {"SALAD_MACHINE_ID": each.machine_id, "SALAD_INSTANCE_ID": each.id}
            for each in group.instances
        }

    def vanish(self, instance_id: str) -> None:
        for group in list(self._rented.cloud.groups.values()):
            for each in [each for each in group.instances if each.id == instance_id]:
                group.interrupt(each, lives_on=True)

    def away(self) -> AbstractContextManager[None]:
        return self._rented.cloud.away()

    def lost_replies(self) -> AbstractContextManager[None]:
        return self._rented.cloud.losing_replies()


@contextmanager
def opened(directory: Path, *, most_each: int = MOST_REPLICAS) -> Iterator[SaladUnderTest]:
    """A fleet whose container groups have at most so many replicas."""
    del directory
    under_test = SaladUnderTest(most_each=most_each)
    try:
        yield under_test
    finally:
        under_test.fleet.close()
