"""Which attempts lived on one node at one time.

Nothing is written about it: an attempt's node and its times say it. `ix_attempts_node` leads to those of a node that
live or ended after a given instant.
"""

import sqlalchemy as sa

from giornata.store.schema import attempts

# One that lives has no end yet.
FOREVER_MS = 2**62
OTHER = attempts.alias("other")
# `OTHER` was on the node of a row of `attempts` in the time of that row. Both were there for at least a millisecond.
BESIDE = sa.and_(
    OTHER.c.node_id == attempts.c.node_id,
    OTHER.c.id != attempts.c.id,
    sa.or_(OTHER.c.ended_at_ms.is_(None), OTHER.c.ended_at_ms > attempts.c.started_at_ms),
    OTHER.c.started_at_ms < sa.func.coalesce(attempts.c.ended_at_ms, sa.literal_column(str(FOREVER_MS))),
)
EXISTS_BESIDE = sa.exists(sa.select(OTHER.c.id).where(BESIDE).correlate(attempts))
COUNT_BESIDE = sa.select(sa.func.count()).select_from(OTHER).where(BESIDE).correlate(attempts).scalar_subquery()
