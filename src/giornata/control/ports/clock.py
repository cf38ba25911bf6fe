"""Time and fresh names."""

from typing import Protocol


class Clock(Protocol):
    """The server's clock; the only one that decides anything about leases."""

    def now_ms(self) -> int:
        """Epoch milliseconds, UTC."""


class Names(Protocol):
    """Fresh identifiers and secrets."""

    def new(self, prefix: str) -> str:
        """`job_…`: unique, ordered by time, lower-case letters and digits after the prefix; at most 40 long."""

    def secret(self) -> str:
        """At least 256 bits, URL-safe."""

    def seed(self) -> int:
        """A non-negative 31-bit number for a job that names no seed."""
