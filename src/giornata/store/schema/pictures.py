"""Tables for orders of pictures, and for their pictures. A row of a picture is narrow: there are millions."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, SmallInteger, String, Table, Text

from giornata.store.schema.columns import at, metadata

# PostgreSQL computes `is_queued` from `state`: a change of a column that an index names changes every index of the
# table, and a result changes `state`. SQLite has no such column: its planner would not find the indexes any more.
ADD_IS_QUEUED = (
    "ALTER TABLE pictures ADD COLUMN IF NOT EXISTS is_queued boolean GENERATED ALWAYS AS (state = 'queued') STORED"
)
QUEUED_PICTURE = {"sqlite": "state = 'queued'", "postgresql": "is_queued"}
UNTOLD = "told < ended"
OPEN_ORDER = "is_open"


def _queue(name: str, *keys: str) -> Index:
    """Return an index of the queued pictures, by priority and turn behind these columns."""
    sqlite, postgresql = (sa.text(QUEUED_PICTURE[name]) for name in ("sqlite", "postgresql"))
    index = Index(name, *keys, sa.text("priority DESC"), "turn", sqlite_where=sqlite, postgresql_where=postgresql)
    add_column: Any = sa.DDL(ADD_IS_QUEUED)  # type: ignore[no-untyped-call]
    sa.event.listen(index, "before_create", add_column.execute_if(dialect="postgresql"))
    return index


picture_orders = Table(  # what an order of pictures has besides its row in jobs
    "picture_orders",
    metadata,
    Column("order_id", ForeignKey("jobs.id"), primary_key=True),
    Column("project_id", String(40), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("pictures", Integer, nullable=False),
    Column("ended", Integer, nullable=False, server_default="0"),  # the latest place that was given
    Column("told", Integer, nullable=False, server_default="0"),  # the place up to which events have told
    at("told_at_ms"),
    Column("ends_turn", BigInteger, nullable=False),  # the turn behind its last picture
    Column("is_open", Boolean, nullable=False, server_default=sa.true()),  # some of its pictures have not ended
    Index("ix_picture_orders_turn", "priority", "ends_turn"),
    Index("ix_picture_orders_project_turn", "project_id", "priority", "ends_turn"),
    Index(
        "ix_picture_orders_open",
        "project_id",
        sqlite_where=sa.text(OPEN_ORDER),
        postgresql_where=sa.text(OPEN_ORDER),
    ),
    Index(
        "ix_picture_orders_untold",
        "told_at_ms",
        sqlite_where=sa.text(UNTOLD),
        postgresql_where=sa.text(UNTOLD),
    ),
)

pictures = Table(
    "pictures",
    metadata,
    # Without a foreign key, which would be looked up for each row: order and pictures are inserted together.
    Column("order_id", String(40), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("project_id", String(40), nullable=False),
    Column("state", String(16), nullable=False),
    Column("batch_key", String(32), nullable=False),
    Column("base_key", String(32), nullable=False),
    Column("turn", BigInteger, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("differs", sa.JSON, nullable=False),  # from the order's spec
    Column("pixel_steps", BigInteger, nullable=False),
    Column("min_vram_bytes", BigInteger, nullable=False, server_default="0"),
    Column("together", SmallInteger, nullable=False),  # pictures at most in a lease that has this one
    Column("tries", SmallInteger, nullable=False, server_default="0"),  # failures that were its own, or may have been
    # Leases that ended for what was no fault of its own, such as a node's death.
    Column("fruitless", SmallInteger, nullable=False, server_default="0"),
    Column("lease", String(40)),  # the present or latest attempt
    Column("sha256", String(64)),
    Column("size_bytes", BigInteger),
    Column("flags", SmallInteger, nullable=False, server_default="0"),
    Column("place", Integer),  # among the order's pictures, in the order in which they ended
    Column("error", Text),
    _queue("ix_pictures_queue"),
    _queue("ix_pictures_queue_base", "base_key"),
    _queue("ix_pictures_queue_batch", "batch_key"),
    Index(
        "ix_pictures_lease",
        "lease",
        sqlite_where=sa.text("lease IS NOT NULL"),
        postgresql_where=sa.text("lease IS NOT NULL"),
    ),
    # Room in a page for both changes of each of its rows: a change in another page writes that page to the log, and a
    # result there writes to every index.
    postgresql_with={"fillfactor": 40},
)

picture_failures = Table(  # machines on which a picture failed, which are not asked again for a while
    "picture_failures",
    metadata,
    Column("order_id", String(40), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("machine_id", String(128), primary_key=True),
    at("at_ms"),
)
