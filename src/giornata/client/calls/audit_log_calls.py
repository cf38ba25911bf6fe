"""The HTTP calls of the audit log."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from giornata.client.calls.operator_calls import OperatorCalls
from giornata.domain.errors import Unavailable
from giornata.protocol.account.audit_log import AuditLogEntry, AuditLogHead, AuditLogHeads, AuditLogPage

PATH = "/v1/audit-log"
ROWS_AT_ONCE = 500


class AuditLogCalls(OperatorCalls):
    """The part of `giornata.client.client.Client` that is about the audit log. Every call takes an admin key.

    An operator reads all projects, or the one that is named.
    """

    def audit_log(
        self,
        *,
        actor: str | None = None,
        verb: str | None = None,
        target: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        project_id: str | None = None,
    ) -> Iterator[AuditLogEntry]:
        """Yield rows, newest first. Raises InvalidInput, and NotFound for a project that the key does not see."""
        params = {
            "actor": actor,
            "verb": verb,
            "target": target,
            "since": None if since is None else since.isoformat(),
            "until": None if until is None else until.isoformat(),
            "project_id": project_id,
        }
        return self._pages(PATH, AuditLogPage, params)

    def audit_log_heads(self, *, project_id: str | None = None) -> list[AuditLogHead]:
        """Return the newest row of each chain."""
        return self._get(f"{PATH}/heads", AuditLogHeads, {"project_id": project_id}).items

    def export_audit_log(self, *, project_id: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows of a chain from its first one, and then its head, `{"head": …}`, as it was at the end.

        `domain.accounts.audit_log.ChainCheck` verifies them.
        """
        after = 0
        while True:
            params = {"project_id": project_id, "after": after, "limit": ROWS_AT_ONCE}
            text = self._connection.text(f"{PATH}/export", params=params)
            *rows, last = _objects(text)
            yield from rows
            after = rows[-1]["number"] if rows else last["head"]["number"]
            if after >= last["head"]["number"]:
                yield last
                return


def _objects(text: str) -> list[dict[str, Any]]:
    try:
        found = [json.loads(line) for line in text.splitlines()]
    except ValueError as error:
        raise Unavailable(f"the answer is no audit log: {error}") from error
    if not found or "head" not in found[-1]:
        raise Unavailable("the answer is no audit log: its last line names no head")
    return found
