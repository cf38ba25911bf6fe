"""The queries for sign-ins over a browser: accounts at an OpenID provider, and devices that wait for a person.

Instants are epoch milliseconds of the server's clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class DeviceState(StrEnum):
    """The stage of a device's sign-in. Each state but the first is reached once, and only from the one before it."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSignInRecord:
    """A device's sign-in as stored: hashes of its two codes.

    `scope` and `project_id` are what was asked for, and after the approval what the key gets. `host_name` is what the
    device says of itself, `address` where its connection came from. `user_id` is who approved or denied.
    """

    id: str
    device_code_sha256: str
    user_code_sha256: str
    scope: str
    project_id: str | None
    host_name: str
    address: str
    key_expires_in_s: int
    created_at_ms: int
    expires_at_ms: int
    interval_s: int
    polled_at_ms: int | None = None
    state: str = DeviceState.PENDING
    user_id: str | None = None


class DeviceSignIns(Protocol):
    """Queries for the sign-ins of devices, by the hashes of their codes."""

    def add(self, device: DeviceSignInRecord) -> bool:
        """Insert the sign-in; False when one of its codes is in use."""

    def by_user_code(self, user_code_sha256: str, *, at_ms: int) -> DeviceSignInRecord | None:
        """Return the sign-in that waits for a person at this instant."""

    def lock(self, device_code_sha256: str) -> DeviceSignInRecord | None:
        """Return the sign-in, whose row nobody else changes before this transaction ends."""

    def approve(self, device_id: str, *, user_id: str, project_id: str, scope: str, at_ms: int) -> bool:
        """Approve a sign-in that waits; False when it does not wait any more."""

    def deny(self, device_id: str, *, user_id: str, at_ms: int) -> bool:
        """Deny a sign-in that waits; False when it does not wait any more."""

    def polled(self, device_id: str, *, at_ms: int, interval_s: int) -> None:
        """Note a poll, and the interval that the next one has to keep."""

    def take(self, device_id: str) -> bool:
        """Use the approval up; False when it was used, or there is none."""

    def waiting(self, address: str, *, at_ms: int) -> int:
        """Return the number of sign-ins from this address that have not expired."""

    def forget(self, *, expired_before_ms: int, limit: int) -> int:
        """Delete sign-ins that expired before this instant; return their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityRecord:
    """An account at an OpenID provider that is linked to a person here."""

    issuer: str
    subject: str
    user_id: str
    created_at_ms: int


class UserIdentities(Protocol):
    """Queries for the accounts of people at OpenID providers."""

    def user_of(self, issuer: str, subject: str) -> str | None:
        """Return the id of the person behind this account of the provider."""

    def add(self, issuer: str, subject: str, *, user_id: str, at_ms: int) -> bool:
        """Insert the link; False when this account of the provider is linked to somebody."""

    def of_user(self, user_id: str) -> Sequence[IdentityRecord]:
        """Return the person's accounts at providers, first linked first."""

    def remove(self, issuer: str, subject: str, *, user_id: str) -> bool:
        """Delete the link; False when this account of the provider is not linked to the person."""
