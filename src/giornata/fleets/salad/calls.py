"""SaladCloud's verbs. Each may be repeated: creating names the group, patches say how things shall be, and a second
start, stop or reallocation of the same instance changes nothing that the first did not."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from giornata.domain.errors import FleetUnavailable
from giornata.fleets.salad.client import ApiResponse, SaladClient

Document = Mapping[str, Any]

MOST_LISTED = (
    100  # container groups in one answer, by the published document; it names no way to ask for further ones
)


class GroupCalls:
    """The routes of one container group. Raises what `SaladClient.ask` does."""

    def __init__(self, client: SaladClient, *, groups: str, name: str) -> None:
        self.name = name
        self._client = client
        self._group = f"{groups}/{quote(name, safe='')}"

    def group(self) -> Document | None:
        """The container group; None when there is none."""
        return _object(self._client.ask("GET", self._group))

    def patch(self, changes: Document) -> ApiResponse:
        """Change the container group; what is not named stays."""
        return self._client.ask("PATCH", self._group, changes)

    def start(self) -> ApiResponse:
        """Start the replicas of the container group."""
        return self._client.ask("POST", f"{self._group}/start")

    def stop(self) -> ApiResponse:
        """Have none of its replicas run."""
        return self._client.ask("POST", f"{self._group}/stop")

    def delete(self) -> ApiResponse:
        """Delete the container group at the provider."""
        return self._client.ask("DELETE", self._group)

    def instances(self) -> Sequence[Document]:
        """Every instance of the group; none when there is no group."""
        answer = _object(self._client.ask("GET", f"{self._group}/instances"))
        return () if answer is None else _rows(answer, "instances")

    def set_deletion_cost(self, instance_id: str, cost: int) -> ApiResponse:
        """Set the deletion cost of an instance: instances with the lowest cost go first."""
        return self._client.ask("PATCH", self.instance_path(instance_id), {"deletion_cost": cost})

    def reallocate(self, instance_id: str) -> ApiResponse:
        """End the instance, and start another on another machine."""
        return self._client.ask("POST", f"{self.instance_path(instance_id)}/reallocate")

    def system_logs(self) -> Sequence[Document]:
        """List recent events of the group's instances, at most 50 entries."""
        answer = _object(self._client.ask("GET", f"{self._group}/system-logs"))
        return () if answer is None else _rows(answer, "items")

    def instance_path(self, instance_id: str) -> str:
        """The path of one instance."""
        return f"{self._group}/instances/{quote(instance_id, safe='')}"


class SaladCalls:
    """The routes of an organization and of one of its projects. Raises what `SaladClient.ask` does."""

    def __init__(self, client: SaladClient, *, organization: str, project: str) -> None:
        self.client = client
        self._organization = f"/organizations/{quote(organization, safe='')}"
        self._groups = f"{self._organization}/projects/{quote(project, safe='')}/containers"

    def of(self, group: str) -> GroupCalls:
        """The routes of the container group of that name."""
        return GroupCalls(self.client, groups=self._groups, name=group)

    def groups(self) -> Sequence[Document]:
        """The project's container groups: all of them, or the first MOST_LISTED."""
        answer = _object(self.client.ask("GET", self._groups))
        return () if answer is None else _rows(answer, "items")

    def create(self, prototype: Document) -> ApiResponse:
        """Make the container group that the prototype names. A second one of its name is refused."""
        return self.client.ask("POST", self._groups, prototype)

    def gpu_classes(self) -> Sequence[Document]:
        """Kinds of GPU with their prices."""
        answer = _object(self.client.ask("GET", f"{self._organization}/gpu-classes"))
        return () if answer is None else _rows(answer, "items")

    def quotas(self) -> Document:
        """Fetch the organization's container quotas and their use."""
        answer = _object(self.client.ask("GET", f"{self._organization}/quotas"))
        return {} if answer is None else answer.get("container_groups_quotas") or {}

    def availability(self, wanted: Document) -> Document:
        """Count the machines that could take such a container just now, by priority."""
        path = f"{self._organization}/availability/sce-gpu-availability"
        return _object(self.client.ask("POST", path, wanted)) or {}


def _object(answer: ApiResponse) -> Document | None:
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
