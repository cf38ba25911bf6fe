"""One cluster of SkyPilot, from its record to an instance."""

from dataclasses import dataclass
from typing import Any

from giornata.control.ports.fleet import Instance, InstanceState

LONGEST_TROUBLE = 300


@dataclass(slots=True, kw_only=True)
class Cluster:
    """One cluster, there or asked for."""

    up: bool = False
    broken: bool = False
    going: bool = False
    since_s: int = 0
    cloud: str = ""
    region: str = ""
    trouble: str = ""

    @classmethod
    def of(cls, record: Any) -> "Cluster":
        status = record.status.value
        unhealthy = status == "INIT" and record.init_kind == "unhealthy"
        return cls(
            up=status == "UP",
            broken=status == "STOPPED" or unhealthy,
            going=status == "AUTOSTOPPING",
            since_s=record.launched_at,
            cloud=record.cloud or "",
            region=record.region or "",
            trouble="" if status == "UP" else str(record.init_status_reason or "")[:LONGEST_TROUBLE],
        )

    def instance(self, name: str) -> Instance:
        """As the control plane sees it."""
        state = InstanceState.RUNNING if self.up else InstanceState.STARTING
        if self.going or self.broken:
            state = InstanceState.STOPPING
        return Instance(
            id=name,
            name=name,
            state=state,
            machine_id=name,
            running_since_ms=self.since_s * 1000 if self.up and self.since_s else None,
            trouble=self.trouble,
            offer=self.place,
        )

    @property
    def place(self) -> str:
        """`cloud/region`, as SkyPilot's own `infra` has it; empty while it is not known."""
        return f"{self.cloud}/{self.region}".lower() if self.cloud and self.region else ""

    def is_in(self, infra: str) -> bool:
        """Whether it is where `cloud[/region[/zone]]` says, as far as that is known."""
        cloud, _, rest = infra.lower().partition("/")
        region = rest.partition("/")[0]
        return cloud in ("*", self.cloud.lower()) and region in ("", "*", self.region.lower())
