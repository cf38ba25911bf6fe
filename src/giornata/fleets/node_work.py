"""What the table of a fleet says of its nodes, and how each node is told: by variables of `giornata node`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from giornata.domain.errors import Fault

FLEET = "GIORNATA_FLEET"
KINDS = "GIORNATA_KINDS"
PLACES = "GIORNATA_PLACES"
WORKLOADS = "GIORNATA_WORKLOADS"
OF_TABLE: Mapping[str, str] = {
    FLEET: "it is the name of the table",
    KINDS: "set kinds in the fleet's table",
    PLACES: "set places in the fleet's table",
    WORKLOADS: "write the command in [workloads], and its kind in the fleet's kinds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWork:
    """What the nodes of a fleet are for. `workloads` has the command line of each kind of one's own that is among
    `kinds`."""

    kinds: tuple[str, ...] = ("train",)
    places: int = 1
    workloads: Mapping[str, str] = field(default_factory=dict)

    def environment(self, fleet: str) -> dict[str, str]:
        """The variables of a node of this fleet, the same with every driver."""
        told = {FLEET: fleet, KINDS: json.dumps(self.kinds), PLACES: str(self.places)}
        return told | ({WORKLOADS: json.dumps(dict(self.workloads))} if self.workloads else {})

    def missing_in(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """As NAME='VALUE' what nodes with these variables have to be told besides, so that they take every kind and
        as many jobs as the table says. A node that is told nothing takes `train`, one job at a time."""
        kinds, places = _read(variables.get(KINDS, '["train"]')), _read(variables.get(PLACES, "1"))
        told = self.environment("")
        lacking = {
            KINDS: not isinstance(kinds, list) or not set(self.kinds) <= set(map(str, kinds)),
            PLACES: not isinstance(places, int) or places < self.places,
        }
        return tuple(f"{name}='{told[name]}'" for name, lacks in lacking.items() if lacks)


def _read(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return None


def faults_of_environment(names: Iterable[str], *, where: str) -> list[Fault]:
    """Variables that would contradict the fleet's table: nodes would do other work than the plan counts on."""
    message = "is what the fleet's table says, and cannot be set here"
    return [
        Fault(where=f"{where}.{name}", message=message, hint=OF_TABLE[name]) for name in names if name in OF_TABLE
    ]
