"""Tables for projects, their keys, their secrets, and the requests that they may repeat."""

import sqlalchemy as sa
from sqlalchemy import JSON, BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text

from giornata.store.schema.columns import at, metadata

installation = Table(
    "installation",
    metadata,
    Column("id", Integer, primary_key=True),  # always 1
    Column("signing_key", String(128), nullable=False),  # empty where it is sealed
    at("created_at_ms"),
    Column("sealed_signing_key", Text),  # encrypted; the key is in no table
)

projects = Table(
    "projects",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("budget_micro_usd", BigInteger),
    at("budget_warned_at_ms", nullable=True),
    Column("monthly_budget_micro_usd", BigInteger),  # of each calendar month in UTC
    at("monthly_budget_warned_at_ms", nullable=True),
    Column("max_pictures", Integer),  # that a dataset may have; NULL: as the installation says
    Column("safety", String(8), nullable=False, server_default="off"),  # what becomes of unsafe pictures
    # What the project may have at a time, a day or a second; NULL: no limit.
    Column("max_running_jobs", Integer),
    Column("max_queued_jobs", Integer),
    Column("max_pictures_per_day", Integer),
    Column("max_stored_bytes", BigInteger),
    Column("max_priority", Integer),
    Column("max_requests_per_s", Integer),
    Column("max_requests_per_s_per_key", Integer),
    Column("allowed_base_models", JSON(none_as_null=True)),  # patterns; NULL: any model
    Column("allowed_adapters", JSON(none_as_null=True)),
    Column("max_open_orders", Integer),
    at("created_at_ms"),
    Column("retention", JSON, nullable=False, server_default="{}"),  # days by what is kept so long
    at("deleted_at_ms", nullable=True),  # what is left then is its name and its money
    Column("created_by", String(40)),  # the person or the key; NULL: the installation, or not known
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("scope", String(64), nullable=False),  # a word, or several verbs with spaces between
    Column("name", String(128), nullable=False),
    Column("prefix", String(16), nullable=False),
    Column("secret_sha256", String(64), nullable=False, unique=True),
    Column("fleet", String(128)),  # of a node's key: the operator's fleet whose nodes it is for
    Column("max_price_micro_usd_per_hour", BigInteger),  # ... and what they may say that they cost
    at("created_at_ms"),
    at("revoked_at_ms", nullable=True),
    at("last_used_at_ms", nullable=True),
    Column("created_by", String(40)),  # the person or the key; NULL: the installation, or not known
    Column("user_id", ForeignKey("users.id")),  # the person behind it; NULL: nobody, its own scopes are its bound
    at("expires_at_ms", nullable=True),
    Column("previous_sha256", String(64)),  # of the secret before the latest rotation
    at("previous_until_ms", nullable=True),  # ... which is good until then
    Column("login", Boolean, nullable=False, server_default=sa.false()),  # may make keys of the person's
    Index("ix_keys_previous", "previous_sha256"),
    Index("ix_keys_user", "user_id", "project_id"),
    Index("ix_keys_project", "project_id", "created_at_ms"),
)

project_secrets = Table(
    "project_secrets",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("sealed", Text, nullable=False),  # encrypted; the key is in no table
    at("created_at_ms"),
    at("changed_at_ms"),
    Column("created_by", String(40)),  # who gave it the value that it has; NULL: not known
)

request_counts = Table(  # UNLOGGED on PostgreSQL: what a crash forgets, the next second brings
    "request_counts",
    metadata,
    Column("server_id", String(40), primary_key=True),  # of a server process
    at("at_ms"),
    Column("counts", JSON, nullable=False),  # kind, id, rate a second, since when, and how many were let through
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("route", String(128), primary_key=True),
    Column("request_sha256", String(64), nullable=False),
    Column("job_id", String(40), nullable=False),
    at("created_at_ms"),
    Index("ix_idempotency_created", "created_at_ms"),
)
