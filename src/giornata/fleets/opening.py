"""From settings to drivers. A driver is a module with `Options` and `open_fleet`; only those in use are loaded."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from giornata.control.ports.fleet import Fleet, Instance
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.installing import install_hint
from giornata.fleets.node_work import NodeWork

DRIVERS: Mapping[str, str] = {
    name: f"giornata.fleets.{name}" for name in ("local", "static", "salad", "kubernetes", "skypilot")
}
EXTRAS: Mapping[str, str] = {"salad": "salad", "kubernetes": "kubernetes", "skypilot": "skypilot"}


class FleetOptions(BaseModel):
    """What a driver can be told, in its part of the settings. Nothing unknown is passed over."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What drivers may need of the process that they are in.

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

    Options: type[FleetOptions]

    def open_fleet(self, name: str, options: Any, surroundings: Surroundings) -> Fleet:
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
        return module.Options.model_validate(dict(options))
    except ValidationError as error:
        raise InvalidInput(
            Fault(where=".".join([where, *map(str, fault["loc"])]), message=fault["msg"]) for fault in error.errors()
        ) from None
