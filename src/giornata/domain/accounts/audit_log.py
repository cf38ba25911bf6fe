"""The audit log: who did what to what, and the chain of hashes that shows whether a row was changed afterwards.

Each project has a chain of its own. A row is a JSON object; its hash is the SHA-256 of the object without the field
`sha256`, with sorted keys, without blanks, in ASCII. The object names the hash of the row before, and the number of
the row, which counts from 1.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

HASH_FIELD = "sha256"
FIRST_PREVIOUS = "0" * 64
"""The hash that the first row of a chain has in place of an earlier row's."""
OTHER_HASH = "it has another hash than the one that was noted of it"


class AuditVerb(StrEnum):
    """The verb of a row. The words are stable: later versions add some, and change none."""

    JOB_SUBMIT = "job.submit"
    JOB_RETRY = "job.retry"
    JOB_CHANGE = "job.change"
    JOB_CANCEL = "job.cancel"
    JOB_IMPORT = "job.import"
    JOB_DELETE = "job.delete"
    PICTURE_MARK = "picture.mark"
    PICTURE_DELETE = "picture.delete"
    DATASET_CREATE = "dataset.create"
    DATASET_DELETE = "dataset.delete"
    PIN_SET = "pin.set"
    PIN_REMOVE = "pin.remove"
    MODEL_ADD = "model.add"
    MODEL_CHANGE = "model.change"
    MODEL_REMOVE = "model.remove"
    KEY_CREATE = "key.create"
    KEY_ROTATE = "key.rotate"
    KEY_REVOKE = "key.revoke"
    SECRET_SET = "secret.set"  # noqa: S105 - a verb, not a password
    SECRET_DELETE = "secret.delete"  # noqa: S105
    WEBHOOK_CREATE = "webhook.create"
    WEBHOOK_CHANGE = "webhook.change"
    WEBHOOK_ROTATE = "webhook.rotate"
    WEBHOOK_DELETE = "webhook.delete"
    WEBHOOK_TEST = "webhook.test"
    WEBHOOK_REPLAY = "webhook.replay"
    NOTIFICATIONS_SET = "notifications.set"
    MEMBER_SET = "member.set"
    MEMBER_REMOVE = "member.remove"
    INVITATION_CREATE = "invitation.create"
    INVITATION_REVOKE = "invitation.revoke"
    INVITATION_ACCEPT = "invitation.accept"
    USER_CREATE = "user.create"
    USER_CHANGE = "user.change"
    SIGN_IN = "session.open"
    SIGN_IN_FAILED = "session.refuse"
    SIGN_OUT = "session.end"
    IDENTITY_LINK = "identity.link"
    IDENTITY_UNLINK = "identity.unlink"
    DEVICE_APPROVE = "device.approve"
    DEVICE_DENY = "device.deny"
    PASSWORD_CHANGE = "password.change"  # noqa: S105 - a verb, not a password
    PROJECT_CREATE = "project.create"
    PROJECT_BUDGET = "project.set_budget"
    PROJECT_LIMITS = "project.set_limits"
    PROJECT_SAFETY = "project.set_safety"
    PROJECT_QUOTAS = "project.set_quotas"
    PROJECT_RETENTION = "project.set_retention"
    PROJECT_DELETE = "project.delete"
    FLEET_ROLL = "fleet.roll"
    FLEET_PAUSE = "fleet.pause"
    FLEET_RESUME = "fleet.resume"
    FLEET_SCALE = "fleet.scale"
    NODE_DRAIN = "node.drain"
    NODE_UNDRAIN = "node.undrain"
    MACHINE_QUARANTINE = "machine.quarantine"
    MACHINE_RELEASE = "machine.release"
    INSTALLATION_INSTALL = "installation.install"
    INSTALLATION_RENEW_SIGNING_KEY = "installation.renew_signing_key"


class ActorKind(StrEnum):
    """The kind of the actor. `operator` is a person or a key that governs the installation."""

    USER = "user"
    KEY = "key"
    OPERATOR = "operator"
    SYSTEM = "system"  # the server itself, at its start
    VISITOR = "visitor"  # somebody who did not sign in


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """The newest row of a chain: its number, from 1, and its hash. Before the first row the number is 0."""

    number: int = 0
    sha256: str = FIRST_PREVIOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFault:
    """The first row of a chain that is not as it was written, and why. `number` is the number that it should have."""

    project_id: str
    number: int
    why: str


def row_sha256(row: Mapping[str, Any]) -> str:
    """Return the hash of a row as it is exported."""
    hashed = {name: value for name, value in row.items() if name != HASH_FIELD}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def linked(row: Mapping[str, Any], after: ChainLink) -> dict[str, Any]:
    """Return the row with its number, the hash of the row before it, and its own."""
    row = {**row, "number": after.number + 1, "previous_sha256": after.sha256}
    return {**row, HASH_FIELD: row_sha256(row)}


@dataclass(slots=True)
class ChainCheck:
    """Checks rows of one or more chains while they are read, each chain from its first row.

    `known` are rows of which number and hash were noted earlier, by project. `ends` are the newest rows that were
    read. After a fault the rest of that chain is passed over: nothing can be said of it.
    """

    known: Mapping[str, ChainLink] = field(default_factory=dict)
    ends: dict[str, ChainLink] = field(default_factory=dict)
    faults: dict[str, ChainFault] = field(default_factory=dict)
    rows: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Look at the next row."""
        self.rows += 1
        project_id = str(row.get("project_id"))
        if project_id in self.faults:
            return
        before = self.ends.get(project_id, ChainLink())
        why = _fault_of(row, before)
        if why is not None:
            self._fault(project_id, before.number + 1, why)
            return
        end = ChainLink(number=before.number + 1, sha256=str(row[HASH_FIELD]))
        noted = self.known.get(project_id)
        if noted is not None and noted.number == end.number and noted != end:
            self._fault(project_id, end.number, OTHER_HASH)
            return
        self.ends[project_id] = end

    def end(self, project_id: str, head: ChainLink) -> None:
        """Compare a chain that was read to its end with its head, and with what was noted of it earlier."""
        if project_id in self.faults:
            return
        end, noted = self.ends.get(project_id, ChainLink()), self.known.get(project_id, ChainLink())
        most = max(head.number, noted.number)
        if end.number < most:
            self._fault(project_id, end.number + 1, f"it is missing: {most} rows were written, {end.number} are here")
        elif end.number > head.number:
            self._fault(project_id, head.number + 1, f"it was added: the head names row {head.number} as the newest")
        elif end != head:
            self._fault(project_id, end.number, OTHER_HASH)

    def first_faults(self) -> list[ChainFault]:
        """Return the first fault of each broken chain, by project."""
        return [self.faults[project_id] for project_id in sorted(self.faults)]

    def _fault(self, project_id: str, number: int, why: str) -> None:
        self.faults[project_id] = ChainFault(project_id=project_id, number=number, why=why)


def _fault_of(row: Mapping[str, Any], before: ChainLink) -> str | None:
    if row.get("number") != before.number + 1:
        return f"row {row.get('number')} stands in its place: a row was deleted, added or moved"
    if row.get("previous_sha256") != before.sha256:
        return "it does not follow the row before it: one of the two was replaced"
    if row.get(HASH_FIELD) != row_sha256(row):
        return "its content was changed: it does not have its hash"
    return None
