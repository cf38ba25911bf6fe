"""What attempts cost."""

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, Table

from giornata.store.schema.columns import at, metadata

ledger = Table(
    "ledger",
    metadata,
    Column("attempt_id", ForeignKey("attempts.id"), primary_key=True),
    Column("seq", Integer, primary_key=True),  # an attempt that lapsed and came back has more than one interval
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    at("from_ms"),
    at("to_ms"),
    Column("price_micro_usd_per_hour", BigInteger, nullable=False),
    Column("amount_micro_usd", BigInteger, nullable=False),  # if it had the node for itself all the time
    Index("ix_ledger_job", "job_id"),
    Index("ix_ledger_project", "project_id", "from_ms"),
)
