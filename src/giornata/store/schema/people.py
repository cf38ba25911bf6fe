"""Tables for people: accounts, members of projects, invitations, sessions, and how people sign in."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text

from giornata.store.schema.columns import at, metadata

users = Table(
    "users",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("email", String(254), nullable=False, unique=True),  # in lower case
    Column("name", String(128), nullable=False),
    Column("password_hash", Text, nullable=False),  # argon2id, with its parameters and its salt
    Column("operator", Boolean, nullable=False, server_default=sa.false()),
    at("created_at_ms"),
    Column("created_by", String(40)),
    at("deactivated_at_ms", nullable=True),
    Index("ix_users_created", "created_at_ms", "id"),
)

memberships = Table(
    "memberships",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("user_id", ForeignKey("users.id"), primary_key=True),
    Column("role", String(16), nullable=False),
    at("created_at_ms"),
    Column("created_by", String(40)),
    Index("ix_memberships_user", "user_id"),
)

invitations = Table(
    "invitations",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("role", String(16), nullable=False),
    Column("secret_sha256", String(64), nullable=False, unique=True),
    at("created_at_ms"),
    Column("created_by", String(40)),
    Column("user_id", ForeignKey("users.id")),  # the person behind the maker
    at("expires_at_ms"),
    at("accepted_at_ms", nullable=True),
    Column("accepted_by", String(40)),
    at("revoked_at_ms", nullable=True),
    Index("ix_invitations_project", "project_id", "created_at_ms", "id"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("user_id", ForeignKey("users.id"), nullable=False),
    Column("secret_sha256", String(64), nullable=False, unique=True),
    at("created_at_ms"),
    at("expires_at_ms"),
    at("last_used_at_ms"),
    at("revoked_at_ms", nullable=True),
    Column("address", String(64), nullable=False),
    Column("agent", String(256), nullable=False),
    Index("ix_sessions_user", "user_id", "created_at_ms", "id"),
)

failed_sign_ins = Table(  # an account here is the hash of an address, whether or not somebody has it
    "failed_sign_ins",
    metadata,
    Column("account_sha256", String(64), primary_key=True),
    Column("address", String(64), primary_key=True),
    Column("failures", Integer, nullable=False),
    Column("closed_until_ms", BigInteger, nullable=False),
    at("latest_at_ms"),
    Index("ix_failed_sign_ins_latest", "latest_at_ms"),
)

user_identities = Table(  # accounts at an OpenID provider
    "user_identities",
    metadata,
    Column("issuer", String(255), primary_key=True),
    Column("subject", String(255), primary_key=True),
    Column("user_id", ForeignKey("users.id"), nullable=False),
    at("created_at_ms"),
    Index("ix_user_identities_user", "user_id"),
)

device_sign_ins = Table(  # sign-ins of a command line, which a person approves in a browser
    "device_sign_ins",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("device_code_sha256", String(64), nullable=False, unique=True),
    Column("user_code_sha256", String(64), nullable=False, unique=True),
    Column("scope", String(64), nullable=False),
    Column("project_id", String(40)),  # that was asked for; after the approval the one of the key
    Column("host_name", String(128), nullable=False),  # as the device says
    Column("address", String(64), nullable=False),
    Column("key_expires_in_s", Integer, nullable=False),
    at("created_at_ms"),
    at("expires_at_ms"),
    at("polled_at_ms", nullable=True),
    Column("interval_s", Integer, nullable=False),
    Column("state", String(16), nullable=False),  # pending, approved, denied or taken
    Column("user_id", ForeignKey("users.id")),  # who approved or denied it
    Index("ix_device_sign_ins_expires", "expires_at_ms"),
    Index("ix_device_sign_ins_address", "address", "expires_at_ms"),
)
