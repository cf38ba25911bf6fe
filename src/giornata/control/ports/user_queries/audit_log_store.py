"""Queries for the audit log (`tx.audit_log`).

A row is inserted in the transaction of the change that it tells of, without a number. A loop gives rows their numbers
and hashes shortly after. No statement changes or deletes a row that has a number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from giornata.domain.accounts.audit_log import AuditVerb, ChainLink


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAuditRow:
    """A change. `actor` is the id of a person or a key, `key_id` that of the key or the session; each may be empty.

    `actor_kind` and `verb` are words of `domain.accounts.audit_log`, or of a later version.
    """

    project_id: str
    at_ms: int
    actor_kind: str
    actor: str
    key_id: str
    address: str
    request_id: str
    verb: str
    target: str
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogRow(NewAuditRow):
    """A row as it is stored. One that is not in its chain yet has no number and no hashes."""

    id: int
    number: int | None
    previous_sha256: str | None
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Conditions that the rows of a list meet, all of them. None stands for any value."""

    project_id: str | None = None
    actor: str | None = None
    verb: AuditVerb | None = None
    target: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class AuditLog(Protocol):
    """Queries for the audit log and its chains."""

    def add_each(self, rows: Sequence[NewAuditRow]) -> None:
        """Insert rows in one statement. They wait for their chains, and hold up no other writer."""

    def page(self, wanted: AuditFilter, *, before: int | None, limit: int) -> list[AuditLogRow]:
        """Return rows, newest first, with ids below `before`."""

    def chained(self, project_id: str, *, after: int, up_to: int, limit: int) -> list[AuditLogRow]:
        """Return rows of a chain in its order, with numbers above `after` and at most `up_to`."""

    def chained_projects(self) -> list[str]:
        """Return the projects that have rows in a chain. It reads the whole log: for maintenance."""

    def unchained(self, *, limit: int) -> list[AuditLogRow]:
        """Return the oldest rows that are not in their chains yet."""

    def heads(self, *, project_id: str | None = None) -> Mapping[str, ChainLink]:
        """Return the newest row of each chain, by project."""

    def lock_heads(self, project_ids: Sequence[str]) -> Mapping[str, ChainLink]:
        """Return the newest rows of these chains, held against other servers until the end of the transaction."""

    def chain(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """Set `number`, `previous_sha256` and `sha256` of the rows `id` that have no number; return how many."""

    def put_heads(self, heads: Mapping[str, ChainLink]) -> None:
        """Note the newest row of each of these chains."""
