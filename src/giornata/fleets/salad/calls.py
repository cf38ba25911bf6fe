"""SaladCloud's verbs. Each may be repeated: creating names the group, patches say how things shall be, and a second
start, stop or reallocation of the same instance changes nothing that the first did not."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from giornata.domain.errors import FleetUnavailable
from giornata.fleets.salad.client import Answer, SaladClient

Document = Mapping[str, Any]


class SaladCalls:
    """The routes of one container group and its organisation. Raises what `SaladClient.ask` does."""

    def __init__(self, client: SaladClient, *, organization: str, project: str, group: str) -> None:
        self.client = client
        self.name = group
        self._organization = f"/organizations/{quote(organization, safe='')}"
        self._groups = f"{self._organization}/projects/{quote(project, safe='')}/containers"
        self._group = f"{self._groups}/{quote(group, safe='')}"

    def group(self) -> Document | None:
        """The container group; None when there is none."""
        return _object(self.client.ask("GET", self._group))

    def create(self, prototype: Document) -> Answer:
        """Make the container group. A second one of its name is refused."""
        return self.client.ask("POST", self._groups, prototype)

    def patch(self, changes: Document) -> Answer:
        """Change the container group; what is not named stays."""
        return self.client.ask("PATCH", self._group, changes)

    def start(self) -> Answer:
        """Have its replicas run."""
        return self.client.ask("POST", f"{self._group}/start")

    def stop(self) -> Answer:
        """Have none of its replicas run."""
        return self.client.ask("POST", f"{self._group}/stop")

    def instances(self) -> Sequence[Document]:
        """Every instance of the group; none when there is no group."""
        answer = _object(self.client.ask("GET", f"{self._group}/instances"))
        return () if answer is None else _rows(answer, "instances")

    def set_deletion_cost(self, instance_id: str, cost: int) -> Answer:
        """When replicas become fewer, instances with the lowest cost go first."""
        return self.client.ask("PATCH", self._instance(instance_id), {"deletion_cost": cost})

    def reallocate(self, instance_id: str) -> Answer:
        """End the instance, and start another on another machine."""
        return self.client.ask("POST", f"{self._instance(instance_id)}/reallocate")

    def gpu_classes(self) -> Sequence[Document]:
        """Kinds of GPU with their prices."""
        answer = _object(self.client.ask("GET", f"{self._organization}/gpu-classes"))
        return () if answer is None else _rows(answer, "items")

    def quotas(self) -> Document:
        """What the organisation may have."""
        answer = _object(self.client.ask("GET", f"{self._organization}/quotas"))
        return {} if answer is None else answer.get("container_groups_quotas") or {}

    def system_logs(self) -> Sequence[Document]:
        """What lately happened to the group's instances, at most 50 entries."""
        answer = _object(self.client.ask("GET", f"{self._group}/system-logs"))
        return () if answer is None else _rows(answer, "items")

    def availability(self, wanted: Document) -> Document:
        """How many machines could take such a container just now, by priority."""
        path = f"{self._organization}/availability/sce-gpu-availability"
        return _object(self.client.ask("POST", path, wanted)) or {}

    def _instance(self, instance_id: str) -> str:
        return f"{self._group}/instances/{quote(instance_id, safe='')}"


def _object(answer: Answer) -> Document | None:
    if not answer.found:
        return None
    if not isinstance(answer.body, dict):
        raise FleetUnavailable("SaladCloud: an answer without an object in it")
    return answer.body


def _rows(answer: Document, name: str) -> Sequence[Document]:
    """The list of that name, whole. One row that cannot be read spoils it: what is missing would be ended."""
    rows = answer.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FleetUnavailable(f"SaladCloud: an answer without {name!r}")
    return rows
