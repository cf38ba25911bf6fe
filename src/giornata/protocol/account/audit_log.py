"""The audit log over HTTP: its rows, and the newest row of each chain."""

from datetime import datetime
from typing import Any

from pydantic import Field

from giornata.protocol.model import MAX_COUNT, Reply, Sha256


class AuditLogEntry(Reply):
    """A change: who did what to what, from where, by which key.

    `actor` is the id of a person or of a key; `key_id` is that of the key or the session. `number` and the hashes
    come a second or two after the change.
    """

    project_id: str
    number: int | None = Field(None, ge=1, le=MAX_COUNT, description="The place in the project's chain.")
    at: datetime
    actor_kind: str = Field(description="`user`, `key`, `operator`, `system`, or `visitor` for a failed sign-in.")
    actor: str
    key_id: str
    address: str = Field(description="The address of the client.")
    request_id: str = Field(
        description="Id of the request, as in the reply's header X-Request-Id and in the server's log."
    )
    verb: str = Field(description="Action that the row records, such as `job.cancel`.")
    target: str = Field(description="The id or the name of what was changed.")
    changes: dict[str, Any] = Field(description="Values that were set: ids, numbers and words, and never a secret.")
    previous_sha256: Sha256 | None = None
    sha256: Sha256 | None = None


class AuditLogPage(Reply):
    """`GET /v1/audit-log`: rows, newest first."""

    items: list[AuditLogEntry]
    next: str | None = None


class AuditLogHead(Reply):
    """The newest row of a project's chain. Kept elsewhere, it shows later that no row up to it was changed."""

    project_id: str
    number: int = Field(ge=1, le=MAX_COUNT)
    sha256: Sha256


class AuditLogHeads(Reply):
    """`GET /v1/audit-log/heads`: the newest row of each chain that the caller may read, by project."""

    items: list[AuditLogHead]
