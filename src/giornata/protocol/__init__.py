"""Everything that crosses a process boundary: specs, requests, replies, events, pipe messages. Read `specs` first."""

VERSION = 1
"""Version of the node and pipe protocols. Additive changes keep it; an agent refuses an engine of another one."""
