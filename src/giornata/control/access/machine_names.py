"""The names of machines and nodes as a caller sees them.

The operator sees every id. A project sees the ids of its own machines, and a pseudonym in the place of each id that
names a machine of the operator's. A pseudonym is the same for as long as the installation lives, and another one in
another project. It has a `~`, which no id of a node may have, so it cannot be claimed with.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from giornata.control.access.install import signing_key_in
from giornata.control.caller import Caller
from giornata.control.context import Foundations
from giornata.control.ports.store import Transaction
from giornata.domain.machines.machine_ids import own_name, owner_of
from giornata.protocol.project.admin import ROOT_PROJECT

DIGITS = 16
TILDE = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownNode:
    """The ids of a node, as a caller sees them."""

    node_id: str
    machine_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineNames:
    """Names machines, nodes and fleets for readers of one project."""

    project_id: str
    key: bytes

    def node(self, *, node_id: str, machine_id: str, name: str) -> ShownNode:
        """Return the shown ids of a node. `machine_id` is the one by which the server knows the machine."""
        if self.project_id == ROOT_PROJECT:
            return ShownNode(node_id=node_id, machine_id=machine_id, name=name)
        if owner_of(machine_id) == self.project_id:
            return ShownNode(node_id=node_id, machine_id=own_name(machine_id, self.project_id), name=name)
        pseudonym = self._pseudonym("operator", machine_id)
        return ShownNode(node_id=self._pseudonym("node", node_id), machine_id=pseudonym, name=pseudonym)

    def machine(self, machine_id: str) -> str:
        """Return the shown name of the machine alone."""
        return self.node(node_id="", machine_id=machine_id, name="").machine_id

    def fleet(self, fleet: str) -> str:
        """Return the shown name of a fleet. Of the operator's fleets a project sees those that one of its keys is
        bound to.
        """
        return fleet if self.project_id == ROOT_PROJECT else own_name(fleet, self.project_id)

    def event_data(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the shown data of an event, which may name a node, or several machines."""
        if "machine_ids" in data:
            data = {**data, "machine_ids": [self.machine(str(each)) for each in data["machine_ids"]]}
        if "machine_id" not in data or "node_id" not in data:
            return data
        shown = self.node(
            node_id=str(data["node_id"]), machine_id=str(data["machine_id"]), name=str(data.get("node_name", ""))
        )
        return {**data, "node_id": shown.node_id, "machine_id": shown.machine_id, "node_name": shown.name}

    def _pseudonym(self, what: str, value: str) -> str:
        text = f"pseudonym\n{self.project_id}\n{what}\n{value}"
        return what + TILDE + hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()[:DIGITS]


def machine_names(tx: Transaction, ctx: Foundations, caller: Caller) -> MachineNames:
    """Return the names of machines as the caller sees them."""
    return MachineNames(project_id=caller.project_id, key=signing_key_in(tx, ctx))
