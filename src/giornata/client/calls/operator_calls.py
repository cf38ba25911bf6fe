"""The HTTP calls of an operator: nodes, machines, fleets, and the server's loops."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from giornata.client.connection import Connection, R
from giornata.protocol.node.fleets import (
    Fleet,
    FleetPage,
    Machine,
    MachinePage,
    QuarantineMachine,
    ScaleFleet,
    ServerLoopPage,
)
from giornata.protocol.project.admin import Node, NodePage


class OperatorCalls:
    """The part of `giornata.client.client.Client` that is for the installation's operator."""

    _connection: Connection

    def nodes(self, *, gone: bool = False) -> Iterator[Node]:
        """Yield the nodes that the key may see."""
        return self._pages("/v1/nodes", NodePage, {"gone": gone})

    def drain_node(self, node_id: str) -> Node:
        """Stop giving jobs to a node, which gives back its jobs (root admin only).

        Raises NotFound, and Conflict for a process that is gone.
        """
        return self._connection.call("POST", f"/v1/nodes/{quoted(node_id)}/drain", Node)

    def undrain_node(self, node_id: str) -> Node:
        """Give jobs to a drained node again (root admin only).

        Raises NotFound, and Conflict when the node has left.
        """
        return self._connection.call("POST", f"/v1/nodes/{quoted(node_id)}/undrain", Node)

    def machines(self, *, state: str | None = None) -> Iterator[Machine]:
        """Yield the health of machines with jobs of each kind; root admin only."""
        return self._pages("/v1/machines", MachinePage, {"state": state})

    def quarantine_machine(self, machine_id: str, *, reason: str = "by hand") -> MachinePage:
        """Give a machine no more work until it is released; root admin only."""
        path = f"/v1/machines/{quoted(machine_id)}/quarantine"
        return self._connection.call("POST", path, MachinePage, body=QuarantineMachine(reason=reason))

    def release_machine(self, machine_id: str) -> MachinePage:
        """Clear all strikes and bans against a machine; root admin only."""
        return self._connection.call("POST", f"/v1/machines/{quoted(machine_id)}/release", MachinePage)

    def fleets(self) -> Iterator[Fleet]:
        """All fleets (root admin only)."""
        return self._pages("/v1/fleets", FleetPage)

    def fleet(self, name: str) -> Fleet:
        """Return one fleet (root admin only). Raises NotFound."""
        return self._connection.call("GET", f"/v1/fleets/{quoted(name)}", Fleet)

    def roll_fleet(self, name: str) -> Fleet:
        """Bring its instances to what the settings say, without losing work (root admin only). Raises NotFound, and
        Conflict for a fleet that has nothing to roll."""
        return self._connection.call("POST", f"/v1/fleets/{quoted(name)}/roll", Fleet)

    def pause_fleet(self, name: str) -> Fleet:
        """Have no nodes of it until it is resumed (root admin only). Raises NotFound, and Conflict for a fleet whose
        nodes come by themselves; so do the next two."""
        return self._connection.call("POST", f"/v1/fleets/{quoted(name)}/pause", Fleet)

    def resume_fleet(self, name: str) -> Fleet:
        """Let a paused fleet follow the queue again (root admin only)."""
        return self._connection.call("POST", f"/v1/fleets/{quoted(name)}/resume", Fleet)

    def scale_fleet(self, name: str, limits: ScaleFleet) -> Fleet:
        """Set limits that win over the settings (root admin only). One that is not given stays; None goes back."""
        return self._connection.call("POST", f"/v1/fleets/{quoted(name)}/scale", Fleet, body=limits)

    def loops(self) -> ServerLoopPage:
        """Return what each loop of the server that answers did last (root admin only)."""
        return self._get("/v1/loops", ServerLoopPage)

    def _get(self, path: str, reply: type[R], params: Mapping[str, Any] | None = None) -> R:
        return self._connection.call("GET", path, reply, params=params)

    def _pages(self, path: str, page: type[Any], params: Mapping[str, Any] | None = None) -> Iterator[Any]:
        cursor: str | None = None
        while True:
            got = self._get(path, page, {**(params or {}), "cursor": cursor})
            yield from got.items
            cursor = got.next
            if cursor is None:
                return


def quoted(identifier: str) -> str:
    """Quote a name as one segment of a path."""
    return quote(identifier, safe="")
