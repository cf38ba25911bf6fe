"""Options of the skypilot driver, and the SkyPilot task of a node."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from giornata.domain.errors import Fault
from giornata.fleets.opening import FleetOptions, NodeWork

# A launch whose answer was lost may be repeated on the same cluster, as a second job: one node is enough.
RUN = "exec flock --nonblock /tmp/giornata-node.lock {command}"
WORK = "/tmp/giornata"  # noqa: S108
WHEEL = r"^https://[^\s#]+/giornata-[^\s/#]+\.whl(\?[^\s#]*)?(#sha256=[0-9a-f]{64})?$"
SOURCES = ("image", "package", "setup")


class SkyPilotOptions(FleetOptions):
    """The machines to request, their places, and the program on them."""

    accelerators: str = Field(
        "RTX4090:1",
        pattern=r"^[\w.-]+(:\d+)?$",
        description="GPUs of a machine, as SkyPilot writes them: NAME[:COUNT].",
    )
    use_spot: bool = Field(
        True,
        description="true: rent spot machines, which are cheaper and may vanish at any moment. At its start the "
        "server refuses a cloud in infra that has none. false: rent on-demand machines.",
    )
    infra: tuple[str, ...] = Field(
        (), description="Clouds and regions, such as aws/us-east-1 or runpod. Default: the cheapest anywhere."
    )
    cpus: str | None = Field(None, description="Number of CPU cores, such as 8+. Default: as SkyPilot chooses.")
    memory: str | None = Field(None, description="Main memory in GB, such as 32+. Default: as SkyPilot chooses.")
    disk_size: int | None = Field(None, ge=20, description="Disk space in GB. Default: as SkyPilot chooses.")
    max_hourly_cost: float | None = Field(
        None, gt=0, description="Maximum price of a machine in US dollars per hour. Default: no maximum."
    )
    image: str | None = Field(
        None, min_length=1, description="Container image of a node. Set exactly one of image, package and setup."
    )
    package: str | None = Field(
        None,
        pattern=WHEEL,
        description="https URL of a wheel of Giornata that a new machine installs, if possible with #sha256=… at "
        "the end. Set it in place of an image.",
    )
    setup: str | None = Field(
        None,
        min_length=1,
        description="Shell commands that install Giornata on a new machine. Set them in place of an image.",
    )
    command: str = Field("giornata node", description="Shell command that starts the node on the machine.")
    environment: dict[str, str] = Field(
        default_factory=dict, description="Additional environment variables of the node. Default: none."
    )
    grace_s: int = Field(30, ge=1, le=3600, description="Seconds that jobs have for a last checkpoint after SIGTERM.")
    idle_minutes_to_down: int = Field(
        15,
        ge=0,
        description="Minutes after which a machine whose node has ended terminates itself, even without the "
        "server. 0: the machine never does, and is billed until the server terminates it. Use 0 for "
        "clouds whose machines cannot terminate themselves.",
    )
    most_nodes: int | None = Field(
        None, ge=0, description="Maximum number of nodes that the clouds' quotas allow. Default: unknown."
    )
    price_usd_per_hour: float | None = Field(
        None,
        ge=0,
        le=1000,
        description="Price of one node in US dollars per hour. Default: the price in SkyPilot's catalog.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts that every node of the fleet gets: URL of the server, key, and work."""

    fleet: str
    url: str
    key: str = field(repr=False)
    work: NodeWork = field(default_factory=NodeWork)


def faults_of_source(options: SkyPilotOptions, *, where: str) -> list[Fault]:
    """A machine gets Giornata from exactly one place that the operator names."""
    named = [name for name in SOURCES if getattr(options, name) is not None]
    if len(named) == 1:
        return []
    if named:
        message, hint = f"{' and '.join(named)} are set", "keep one of them"
        return [Fault(where=f"{where}.{named[-1]}", message=message, hint=hint)]
    message = "is not set, and a new machine has no Giornata: no package index has it"
    hint = (
        "set image to a container image with Giornata; or build a wheel in a clone (pip wheel --no-deps -w dist .), "
        "put it where machines can fetch it, and set package to its URL; or set setup to commands of your own"
    )
    return [Fault(where=f"{where}.image", message=message, hint=hint)]


def task_of(name: str, options: SkyPilotOptions, infra: Sequence[str], told: NodeFacts) -> dict[str, Any]:
    """A task in SkyPilot's YAML format, as a mapping. The key goes as a secret, which SkyPilot does not show."""
    task: dict[str, Any] = {
        "name": name,
        "resources": resources_of(told.fleet, options, infra),
        "envs": _environment(name, options, told),
        "secrets": {"GIORNATA_NODE_KEY": told.key},
        "run": RUN.format(command=options.command),
    }
    if options.package is not None:
        task["setup"] = setup_of(options.package)
    if options.setup is not None:
        task["setup"] = options.setup
    return task


def setup_of(package: str) -> str:
    """The shell command that installs the wheel at this URL. Its dependencies come from the package index of the
    machine; no program that the installation runs sees the node's key."""
    return f"env --unset=GIORNATA_NODE_KEY pip install {shlex.quote(f'giornata[train] @ {package}')}"


def resources_of(fleet: str, options: SkyPilotOptions, infra: Sequence[str]) -> dict[str, Any]:
    """The machine, in SkyPilot's YAML format."""
    idle = options.idle_minutes_to_down
    wanted = {
        "accelerators": options.accelerators,
        "use_spot": options.use_spot,
        "cpus": options.cpus,
        "memory": options.memory,
        "disk_size": options.disk_size,
        "max_hourly_cost": options.max_hourly_cost,
        "image_id": f"docker:{options.image}" if options.image else None,
        "labels": {"giornata-fleet": fleet},
        "autostop": {"idle_minutes": idle, "down": True} if idle else None,
        "any_of": [{"infra": each} for each in infra] or None,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def _environment(name: str, options: SkyPilotOptions, told: NodeFacts) -> dict[str, str]:
    return {
        "GIORNATA_URL": told.url,
        **told.work.environment(told.fleet),
        "GIORNATA_INSTANCE_ID": name,
        "GIORNATA_MACHINE_ID": name,
        "GIORNATA_NODE_NAME": name,
        "GIORNATA_GRACE_S": str(options.grace_s),
        "GIORNATA_DATA": WORK,
        **options.environment,
    }
