"""The skypilot driver on a fake of SkyPilot that is held to its signatures."""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests.contract.fleets.under_test import WORK
from tests.fixtures.skypilot_fake import REGIONS, FakeSky, ResourcesUnavailableError

from giornata.fleets.opening import FleetDependencies, NodeWork
from giornata.fleets.skypilot.driver import SkyPilotFleet, fleet_on
from giornata.fleets.skypilot.task import SkyPilotOptions

IMAGE = "registry.example/giornata-node:1"


class SkyPilotUnderTest:
    """A fleet in three regions."""

    name = "gpu"
    reallocation_moves = True
    chooses_who_leaves = True
    gives_nodes = True

    def __init__(self, **options: Any) -> None:
        self.sky = FakeSky()
        self._clock = itertools.count(1_700_000_000_000)
        self._options = {"price_usd_per_hour": 0.3, "infra": REGIONS, "image": IMAGE} | options
        self.fleet = self._open(self._options)

    def _open(self, options: dict[str, Any], work: NodeWork = WORK) -> SkyPilotFleet:
        dependencies = FleetDependencies(
            server_url=lambda: "https://giornata.example",
            node_key=lambda: "the-key-of-nodes",
            data=Path("/nowhere"),
            environment={},
            now_ms=lambda: next(self._clock),
            work=work,
        )
        return fleet_on(self.sky, "gpu", SkyPilotOptions.model_validate(options), dependencies)

    def told(self) -> dict[str, dict[str, str]]:
        return {name: tasks[-1]["envs"] | tasks[-1]["secrets"] for name, tasks in self.sky.tasks.items()}

    def change_settings(self) -> None:
        self.fleet = self._open(self._options | {"image": "registry.example/giornata-node:2"})

    def change_work(self, work: NodeWork) -> None:
        self.fleet = self._open(self._options, work)

    @contextmanager
    def hold_up(self) -> Iterator[str]:
        self.sky.launches_fail = ResourcesUnavailableError("no RTX4090 in all of aws")
        yield "no RTX4090 in all of aws"
        self.sky.launches_fail = None

    def settle_held_up(self) -> None:
        self.sky.act()

    def settle(self) -> None:
        self.sky.act()
        # The loop asks again and again for what it wants; here it is what was asked for last.
        self.sky.act()

    def vanish(self, instance_id: str) -> None:
        """The cloud takes a spot machine: a refreshed status lists it no more; the loop asks for another."""
        present = len(self.sky.clusters)
        del self.sky.clusters[instance_id]
        self.fleet.desired(present)

    def away(self) -> AbstractContextManager[None]:
        return self.sky.away()


@contextmanager
def opened(_directory: Path) -> Iterator[SkyPilotUnderTest]:
    yield SkyPilotUnderTest()
