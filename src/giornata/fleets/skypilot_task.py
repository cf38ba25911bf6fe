"""What the skypilot driver can be told, and the SkyPilot task that a node is."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from giornata.fleets.opening import FleetOptions

# A launch whose answer was lost may be repeated on the same cluster, as a second job: one node is enough.
RUN = "exec flock --nonblock /tmp/giornata-node.lock {command}"
WORK = "/tmp/giornata"  # noqa: S108


class Options(FleetOptions):
    """What machines to ask for, where, and what runs on them."""

    accelerators: str = Field(
        "RTX4090:1", pattern=r"^[\w.-]+(:\d+)?$", description="NAME[:COUNT], as SkyPilot has it."
    )
    use_spot: bool = Field(True, description="Spot machines, which may vanish at any moment.")
    infra: tuple[str, ...] = Field((), description="Where: aws/us-east-1, runpod, … Default: the cheapest anywhere.")
    cpus: str | None = Field(None, description="Such as 8+.")
    memory: str | None = Field(None, description="GB, such as 32+.")
    disk_size: int | None = Field(None, ge=20, description="GB.")
    max_hourly_cost: float | None = Field(
        None, gt=0, description="US dollars an hour that a machine may cost at most."
    )
    image: str | None = Field(None, description="Container image of a node. Default: the cloud's, and `setup`.")
    setup: str = Field(
        "pip install 'giornata[train]'", description="Shell, once on a new machine; not with an image."
    )
    command: str = Field("giornata node", description="What runs the node.")
    environment: dict[str, str] = Field(default_factory=dict, description="More variables of the node.")
    grace_s: int = Field(30, ge=1, le=3600, description="Time for the last checkpoint after SIGTERM.")
    idle_minutes_to_down: int = Field(
        15, ge=1, description="A machine whose node has ended takes itself down after so long, server or no server."
    )
    most_nodes: int | None = Field(None, ge=0, description="What the clouds' quotas allow, if that is known.")
    price_usd_per_hour: float | None = Field(
        None, ge=0, le=1000, description="What an hour of one node costs. Default: SkyPilot's catalogue."
    )


def task_of(fleet: str, name: str, options: Options, infra: Sequence[str], *, url: str, key: str) -> dict[str, Any]:
    """A task in SkyPilot's YAML format, as a mapping. The key goes as a secret, which SkyPilot does not show."""
    wanted = {
        "accelerators": options.accelerators,
        "use_spot": options.use_spot,
        "cpus": options.cpus,
        "memory": options.memory,
        "disk_size": options.disk_size,
        "max_hourly_cost": options.max_hourly_cost,
        "image_id": f"docker:{options.image}" if options.image else None,
        "labels": {"giornata-fleet": fleet},
        "autostop": {"idle_minutes": options.idle_minutes_to_down, "down": True},
        "any_of": [{"infra": each} for each in infra] or None,
    }
    task: dict[str, Any] = {
        "name": name,
        "resources": {key: value for key, value in wanted.items() if value is not None},
        "envs": _environment(fleet, name, options, url),
        "secrets": {"GIORNATA_NODE_KEY": key},
        "run": RUN.format(command=options.command),
    }
    if not options.image:
        task["setup"] = options.setup
    return task


def _environment(fleet: str, name: str, options: Options, url: str) -> dict[str, str]:
    return {
        "GIORNATA_URL": url,
        "GIORNATA_FLEET": fleet,
        "GIORNATA_INSTANCE_ID": name,
        "GIORNATA_MACHINE_ID": name,
        "GIORNATA_NODE_NAME": name,
        "GIORNATA_GRACE_S": str(options.grace_s),
        "GIORNATA_DATA": WORK,
        **options.environment,
    }
