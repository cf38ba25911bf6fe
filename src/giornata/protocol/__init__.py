"""Everything that crosses a process boundary: specs, requests, replies, events, pipe messages. Read `specs` first."""

from giornata.domain.protocol_versions import SpokenVersions

VERSION = 1
"""Version of the node and pipe protocols. Additive changes keep it; an agent refuses an engine of another one."""

OLDEST_VERSION = 1
"""Oldest version of the protocol between node and server that this version of Giornata still speaks."""

SPOKEN = SpokenVersions(oldest=OLDEST_VERSION, newest=VERSION)
"""Versions of the protocol between node and server that this version of Giornata speaks, on either side."""

PROTOCOL_HEADER = "Giornata-Protocol"
"""Header in which a node names the versions that it speaks, and a server the version that both will speak."""
