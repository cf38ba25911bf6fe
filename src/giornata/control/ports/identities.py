"""Nodes that prove who they are by a token of their provider's, and need no key."""

from dataclasses import dataclass
from typing import Protocol

from giornata.domain.errors import Unauthenticated


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadIdentity:
    """The identity that a provider's token gives the node that sent it: its machine and its fleet.

    `expires_at_ms` (epoch ms of the server's clock) is when the token is no longer good.
    """

    fleet: str
    machine_id: str
    expires_at_ms: int


class WorkloadIdentities(Protocol):
    """Reads the tokens that the providers of this installation's fleets give to their workloads."""

    def recognize(self, token: str) -> WorkloadIdentity:
        """Return the workload that this token is of.

        Raises Unauthenticated unless it is genuine, for this installation, good now, and of one of its fleets;
        Unavailable when that cannot be found out just now.
        """


class NoIdentities:
    """Refuses every token, for installations none of whose fleets has a provider that gives tokens."""

    def recognize(self, token: str) -> WorkloadIdentity:
        """Raises Unauthenticated, whatever the token is."""
        del token
        raise Unauthenticated("no fleet of this installation takes tokens of a provider; send a key: gk_…")
