"""The driver of anybody's machines: nobody but their owners can start or end one, and the test plays the owners."""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from giornata.control.ports.fleet import Instance, InstanceState
from giornata.fleets.opening import FleetDependencies, open_driver, read_options


class StaticUnderTest:
    """A fleet of machines whose owners start and end nodes."""

    name = "desk"
    reallocation_moves = False
    chooses_who_leaves = False
    gives_nodes = False

    def __init__(self, directory: Path) -> None:
        self._seen: dict[str, Instance] = {}
        self._numbers = itertools.count(1)
        dependencies = FleetDependencies(
            server_url=lambda: "https://giornata.example",
            node_key=lambda: "gk_00000000_node",
            data=directory,
            environment={},
            now_ms=lambda: 0,
            seen=lambda name: tuple(self._seen.values()) if name == "desk" else (),
        )
        module = open_driver("static", where="fleets.desk")
        options = read_options(module, {"price_usd_per_hour": 0.1}, where="fleets.desk.options")
        self.fleet = module.open_fleet("desk", options, dependencies)

    def join(self, nodes: int) -> None:
        """So many owners have a node run."""
        while len(self._seen) < nodes:
            name = f"node-{next(self._numbers)}"
            machine = f"machine-of-{name}"
            self._seen[name] = Instance(id=name, state=InstanceState.RUNNING, machine_id=machine)

    def settle(self) -> None:
        """Nothing is ever on its way."""

    def vanish(self, instance_id: str) -> None:
        del self._seen[instance_id]

    def away(self) -> AbstractContextManager[None]:
        raise NotImplementedError("there is nobody to be asked")


@contextmanager
def opened(directory: Path) -> Iterator[StaticUnderTest]:
    yield StaticUnderTest(directory)
