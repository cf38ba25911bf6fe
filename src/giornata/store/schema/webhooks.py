"""Tables for webhooks, their deliveries, and how far the events have been turned into deliveries."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text

from giornata.store.schema.columns import RowId, at, metadata

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("project_id", ForeignKey("projects.id", ondelete="CASCADE"), nullable=False),
    Column("job_id", String(40)),  # of this job alone; no foreign key: a job may go before its webhook
    Column("format", String(16), nullable=False),
    Column("events", sa.JSON, nullable=False),  # patterns
    Column("target", String(2048), nullable=False),  # as it is shown
    Column("sealed", Text, nullable=False),  # target and secrets, encrypted; the key is in no table
    Column("daily_digest", Boolean, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("disabled_because", String(500), nullable=False),
    Column("begins_after", BigInteger, nullable=False),  # the newest event when it was made
    at("old_secret_until_ms", nullable=True),
    at("created_at_ms"),
    Column("user_id", String(40)),  # the person whose own notifications these are; NULL: a webhook of the project
    Column("created_by", String(40)),  # the person or the key; NULL: not known
    Index("ix_webhooks_project", "project_id", "created_at_ms", "id"),
)
_IS_OPEN = sa.text("ended_at_ms IS NULL")
_IS_ENDED = sa.text("ended_at_ms IS NOT NULL")
webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("webhook_id", ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("chain", String(40), nullable=False),  # deliveries of a webhook with equal chains go one after the other
    Column("event_id", String(40), nullable=False),
    Column("job_id", String(40)),
    Column("type", String(64), nullable=False),
    Column("body", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("tries", Integer, nullable=False),
    at("due_at_ms"),  # of one that is being sent: when whoever sends it must have ended
    Column("status", Integer),
    Column("error", String(500), nullable=False),
    at("created_at_ms"),
    at("ended_at_ms", nullable=True),
    Index(
        "ix_webhook_deliveries_open", "webhook_id", "chain", "id", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN
    ),
    Index("ix_webhook_deliveries_ended", "ended_at_ms", sqlite_where=_IS_ENDED, postgresql_where=_IS_ENDED),
    Index("ix_webhook_deliveries_webhook", "webhook_id", "id"),
)
webhook_cursor = Table(
    "webhook_cursor",
    metadata,
    Column("id", Integer, primary_key=True),  # always 1
    Column("event_id", BigInteger, nullable=False),  # no event up to this one waits for its deliveries
)
