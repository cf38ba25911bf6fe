"""Interfaces for time and for fresh names."""

from typing import Protocol


class Clock(Protocol):
    """The server's clock; the only one that decides anything about leases."""

    def now_ms(self) -> int:
        """Return the current time in epoch milliseconds, UTC."""


class Names(Protocol):
    """A source of fresh identifiers and secrets."""

    def new(self, prefix: str) -> str:
        """Return a unique id like `job_…`, ordered by time: lower-case letters and digits after the prefix; at most
        40 characters long.
        """

    def secret(self) -> str:
        """Return a URL-safe secret of at least 256 bits."""

    def seed(self) -> int:
        """Return a non-negative 31-bit number for a job that names no seed."""
