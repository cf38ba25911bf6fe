"""The queries of projects' secrets."""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord:
    """A secret as stored: sealed."""

    project_id: str
    name: str
    sealed: str = field(repr=False)
    created_at_ms: int
    changed_at_ms: int


class Secrets(Protocol):
    """Sealed values by (project, name)."""

    def put(self, secret: SecretRecord) -> None:
        """Insert, or replace the value and `changed_at_ms` of the one that is there."""

    def get(self, project_id: str, name: str) -> SecretRecord | None: ...

    def of_project(self, project_id: str) -> list[SecretRecord]:
        """By name."""

    def drop(self, project_id: str, name: str) -> bool:
        """False when there is none."""
