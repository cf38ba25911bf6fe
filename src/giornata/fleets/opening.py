"""Open the drivers that the settings name.

A driver is a module with `OPTIONS` and `open_fleet`. Only drivers in use are loaded.
"""

import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from giornata.control.ports.fleet import FleetDriver, Instance
from giornata.control.ports.identities import NoIdentities, WorkloadIdentities, WorkloadIdentity
from giornata.domain.errors import Fault, InvalidInput, Unauthenticated, Unavailable, install_hint
from giornata.domain.generation.picture import NODE_KINDS

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
    """The work of a fleet's nodes. `workloads` has the command line of each kind of one's own that is among
    `kinds`."""

    kinds: tuple[str, ...] = NODE_KINDS
    places: int = 1
    workloads: Mapping[str, str] = field(default_factory=dict)

    def environment(self, fleet: str) -> dict[str, str]:
        """The variables of a node of this fleet, the same with every driver."""
        told = {FLEET: fleet, KINDS: json.dumps(self.kinds), PLACES: str(self.places)}
        return told | ({WORKLOADS: json.dumps(dict(self.workloads))} if self.workloads else {})

    def missing_in(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """Return, as NAME='VALUE', the variables that such nodes lack for the table's kinds and number of jobs.

        A node without these variables takes the kinds of `NODE_KINDS`, one job at a time.
        """
        kinds, places = _read(variables.get(KINDS, json.dumps(NODE_KINDS))), _read(variables.get(PLACES, "1"))
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


DRIVERS: Mapping[str, str] = {
    name: f"giornata.fleets.{name}" for name in ("local", "static", "salad", "kubernetes", "skypilot")
}
EXTRAS: Mapping[str, str] = {"salad": "salad", "kubernetes": "kubernetes", "skypilot": "skypilot"}


class FleetOptions(BaseModel):
    """Options of a driver in the settings. Unknown options are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDependencies:
    """Things of the server's process that drivers may need.

    `server_url` is how nodes reach the server, known once it listens; `node_key` makes or finds the fleet's key;
    `environment` is this process's, for credentials that have standard names; `now_ms` the server's clock; `seen` has
    the nodes of a fleet that were heard of, each as an instance. Every driver tells its nodes the `work`.
    `node_flags` are about the server's own machine, for nodes on it.
    """

    server_url: Callable[[], str]
    node_key: Callable[[], str]
    data: Path
    environment: Mapping[str, str]
    now_ms: Callable[[], int]
    work: NodeWork = field(default_factory=NodeWork)
    node_flags: tuple[str, ...] = ()
    seen: Callable[[str], Sequence[Instance]] = lambda _fleet: ()


class Driver(Protocol):
    """The module of a driver."""

    OPTIONS: type[FleetOptions]

    def open_fleet(self, name: str, options: Any, dependencies: FleetDependencies) -> FleetDriver:
        """A fleet by this name. Asks the provider nothing yet. Raises InvalidInput with every fault."""


def open_driver(driver: str, *, where: str) -> Driver:
    """The driver's module. Raises InvalidInput for a name that there is none for, or whose extra is not installed."""
    if driver not in DRIVERS:
        hint = f"one of {', '.join(DRIVERS)}"
        raise InvalidInput([Fault(where=f"{where}.driver", message=f"there is no driver {driver!r}", hint=hint)])
    try:
        module: Any = importlib.import_module(DRIVERS[driver])
    except ModuleNotFoundError as error:
        hint = install_hint("server", EXTRAS.get(driver, driver))
        message = f"the driver {driver} needs {error.name}"
        raise InvalidInput([Fault(where=f"{where}.driver", message=message, hint=hint)]) from None
    return module  # type: ignore[no-any-return]


def read_options(module: Driver, options: Mapping[str, Any], *, where: str) -> FleetOptions:
    """The options, checked whole. Raises InvalidInput with every fault."""
    try:
        return module.OPTIONS.model_validate(dict(options))
    except ValidationError as error:
        raise InvalidInput(
            Fault(where=".".join([where, *map(str, fault["loc"])]), message=fault["msg"]) for fault in error.errors()
        ) from None


@runtime_checkable
class HasIdentities(Protocol):
    """A fleet whose provider gives its nodes tokens that identify them."""

    @property
    def identities(self) -> WorkloadIdentities | None:
        """The verifier of the tokens; None when the fleet's nodes carry a key."""


@dataclass(frozen=True, slots=True)
class AnyIdentities:
    """Takes a token that any of these recognizes."""

    each: Sequence[WorkloadIdentities]

    def recognize(self, token: str) -> WorkloadIdentity:
        """See WorkloadIdentities. Unavailable counts for more than a refusal: the one who is away might know it."""
        away: Unavailable | None = None
        for identities in self.each:
            try:
                return identities.recognize(token)
            except Unauthenticated:
                continue
            except Unavailable as error:
                away = error
        raise away or Unauthenticated("this token is of no fleet of this installation")


def identities_of(fleets: Iterable[object]) -> WorkloadIdentities:
    """Return one verifier for the tokens of all these fleets."""
    found = [fleet.identities for fleet in fleets if isinstance(fleet, HasIdentities)]
    known = [each for each in found if each is not None]
    return AnyIdentities(known) if known else NoIdentities()
