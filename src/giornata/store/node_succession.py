"""A node's process that is gone although it was heard of a moment ago."""

import sqlalchemy as sa

from giornata.store.schema import nodes

_newer = nodes.alias("newer")


def replaced() -> sa.ColumnElement[bool]:
    """Whether a node of the same name on the same machine first appeared after this one was last heard of.

    Two processes under one name that both live are heard of again and again, and count as two.
    """
    return sa.exists().where(
        _newer.c.project_id == nodes.c.project_id,
        _newer.c.machine_id == nodes.c.machine_id,
        _newer.c.name == nodes.c.name,
        _newer.c.first_seen_at_ms > nodes.c.last_seen_at_ms,
        # It follows, and has an index.
        _newer.c.last_seen_at_ms > nodes.c.last_seen_at_ms,
    )
