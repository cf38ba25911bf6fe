"""What the behavioral suite of fleets needs of each driver: a fleet, and hands on the provider behind it.

One module for each driver, `driver_<name>.py` beside this one, has a context manager
`opened(directory: Path) -> FleetUnderTest`, and a line in `conftest.py`.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from giornata.control.ports.fleet import FleetDriver
from giornata.fleets.opening import NodeWork

WORK = NodeWork(kinds=("pretrain", "x-count"), places=3, workloads={"x-count": "python count.py --to '9 9'"})
"""What the table of the fleet under test says of its nodes; nothing of it is a default."""


class FleetUnderTest(Protocol):
    """A fleet that has no nodes at first, and whose nodes are for WORK."""

    fleet: FleetDriver
    name: str  # of the fleet's table
    reallocation_moves: bool  # a reallocated instance comes back on another machine
    chooses_who_leaves: bool  # of several, exactly those named in `leaving` go
    gives_nodes: bool  # nodes come when they are asked for; else `join(nodes)` has their owners start some

    def settle(self) -> None:
        """Let the provider do what it was asked: afterwards instances run or are gone, nothing is on its way."""

    def vanish(self, instance_id: str) -> None:
        """The provider takes the instance away by itself; `settle` brings another."""

    def told(self) -> Mapping[str, Mapping[str, str]]:
        """The variables of each node by its instance, as its process has them; where nodes come when they are asked
        for."""

    def away(self) -> AbstractContextManager[None]:
        """Meanwhile the provider cannot be asked."""
