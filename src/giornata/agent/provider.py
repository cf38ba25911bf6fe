"""Who lends the machine, as the node on it can reach them."""

from typing import Protocol


class Provider(Protocol):
    """Told when a node ends because its machine is not fit for work."""

    def leave(self, reason: str) -> None:
        """Ask for another machine in place of this one, as far as the provider offers that. Waits no longer than
        some seconds, and raises nothing: the node ends in any case."""


class NoProvider:
    """Nobody to tell: whoever started the node sees its exit code."""

    def leave(self, reason: str) -> None:
        """See Provider."""
