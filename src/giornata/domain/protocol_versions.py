"""The protocol between node and server has a version; both sides speak the newest one that both know."""

import re
from dataclasses import dataclass

from giornata.domain.errors import ProtocolMismatch

UNSAID = "1"
"""Version of nodes and servers from before there was a negotiation: they say nothing."""
PATTERN = r"^[1-9][0-9]{0,3}(-[1-9][0-9]{0,3})?$"
"""Regular expression of what a side says: `2`, or `1-2` for every version from 1 to 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenVersions:
    """Every version from `oldest` to `newest`, both included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest}-{self.newest}"

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.oldest <= version <= self.newest


def versions_of(said: str | None) -> SpokenVersions:
    """Return the versions that the other side has said that it speaks. None, and a text that cannot be read, mean a
    side from before there was a negotiation.
    """
    text = said if said is not None and re.fullmatch(PATTERN, said) else UNSAID
    oldest, _, newest = text.partition("-")
    return SpokenVersions(oldest=int(oldest), newest=int(newest or oldest))


def agreed_version(*, node: SpokenVersions, server: SpokenVersions) -> int:
    """Return the newest version that both sides speak. Raises ProtocolMismatch when they have none in common."""
    newest = min(node.newest, server.newest)
    if newest in node and newest in server:
        return newest
    said = f"this node speaks version {node} of the protocol between node and server, and this server {server}"
    if node.newest < server.oldest:
        raise ProtocolMismatch(f"the node is too old: {said}; install the server's version of Giornata on the node")
    raise ProtocolMismatch(
        f"the node is too new: {said}; upgrade the server, or install the server's version of Giornata on the node"
    )
