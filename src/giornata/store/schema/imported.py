"""The table of attempts that other installations made: history, which no bill, pace or health of a machine counts."""

from sqlalchemy import BigInteger, Boolean, Column, Integer, String, Table, Text

from giornata.store.schema.columns import at, metadata

imported_attempts = Table(
    "imported_attempts",
    metadata,
    # Without a foreign key: making one locks the table of jobs against claims.
    Column("job_id", String(40), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("id", String(64), nullable=False),  # as it was called there, like the node and the machine
    Column("node_id", String(128), nullable=False),
    Column("machine_id", String(128), nullable=False),
    Column("node_name", String(128), nullable=False),
    at("started_at_ms"),
    at("first_step_at_ms", nullable=True),
    at("lease_expires_at_ms"),
    at("ended_at_ms"),
    Column("lapsed", Boolean, nullable=False),
    Column("reason", String(32)),
    Column("message", Text),
    Column("start_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("committed_step", BigInteger, nullable=False),
    Column("phase", String(64), nullable=False),
    Column("billed_ms", BigInteger, nullable=False),
    Column("amount_micro_usd", BigInteger, nullable=False),  # billed there
)
