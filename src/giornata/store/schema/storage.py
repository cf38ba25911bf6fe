"""Tables for stored bytes, and for those that belong together."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text

from giornata.store.schema.columns import at, metadata

blobs = Table(
    "blobs",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("key", String(512), nullable=False, unique=True),
    at("created_at_ms"),
    Column("inspection", sa.JSON),  # what the picture inspector said of these bytes, once asked
    at("looked_at_ms", nullable=True),  # when the server last looked because somebody doubted them
    at("lost_at_ms", nullable=True),  # when it found that storage has them no more, or others
    Index("ix_blobs_created", "created_at_ms"),
    Index("ix_blobs_bytes", "project_id", "size_bytes"),  # what a project stores is added up from this one
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("attempt_id", ForeignKey("attempts.id")),  # None: asked for by a user
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("key", String(512), nullable=False, unique=True),
    Column("multipart_id", String(1024)),
    at("created_at_ms"),
    at("completed_at_ms", nullable=True),
    Column("created_by", String(40)),  # the person or the key; NULL: an attempt, or not known
    Index("ix_uploads_created", "created_at_ms"),
    Index(
        "ix_uploads_open",
        *("project_id", "size_bytes"),
        sqlite_where=sa.text("completed_at_ms IS NULL AND attempt_id IS NULL"),
        postgresql_where=sa.text("completed_at_ms IS NULL AND attempt_id IS NULL"),
    ),
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("labels", sa.JSON, nullable=False),
    Column("notes", sa.JSON, nullable=False),
    Column("picture_count", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    at("created_at_ms"),
    Column("created_by", String(40)),  # the person or the key; NULL: not known
    Column("pinned", Boolean, nullable=False, server_default=sa.false()),  # retention does not take it
    Index("ix_datasets_project", "project_id", "created_at_ms", "id"),
)

dataset_items = Table(
    "dataset_items",
    metadata,
    Column("dataset_id", String(64), primary_key=True),
    Column("project_id", String(40), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("sha256", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("caption", Text),
    Column("repeats", Integer, nullable=False, server_default="1"),
    Column("resolution", Integer),  # in pixels; NULL: the job's
    sa.ForeignKeyConstraint(["dataset_id", "project_id"], ["datasets.id", "datasets.project_id"]),
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_dataset_items_blob", "project_id", "sha256"),
)

caches = Table(
    "caches",
    metadata,
    Column("project_id", String(40), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    at("created_at_ms"),
    at("used_at_ms"),
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_caches_blob", "project_id", "sha256"),
)

models = Table(
    "models",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("name", String(512), primary_key=True),
    Column("sha256", String(64)),  # NULL: the engine loads it from the hub
    Column("kind", String(16), nullable=False),
    Column("family", String(16)),  # NULL: the file does not tell
    Column("size_bytes", BigInteger, nullable=False),
    Column("source", String(16), nullable=False),
    Column("reference", String(512), nullable=False),  # empty for an upload
    Column("pinned", Boolean, nullable=False),
    Column("shared", Boolean, nullable=False),  # with all projects; of the operator's project only
    at("created_at_ms"),
    at("used_at_ms"),
    Column("created_by", String(40)),  # the person or the key; NULL: an order that named it
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_models_blob", "project_id", "sha256"),
    Index("ix_models_project", "project_id", "created_at_ms", "name"),
)
