"""People: accounts, members of projects, invitations and sessions; and the maker of each row that a person makes."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back. Jobs are locked first and projects last, as requests do."""
    for table in ("jobs", "datasets", "models"):
        op.add_column(table, sa.Column("created_by", sa.String(length=40), nullable=True))
    _make_users()
    with op.batch_alter_table("keys") as keys:
        keys.alter_column("scope", type_=sa.String(length=64), existing_type=sa.String(length=16), nullable=False)
        keys.add_column(sa.Column("created_by", sa.String(length=40), nullable=True))
        keys.add_column(sa.Column("user_id", sa.String(length=40), nullable=True))
        keys.add_column(sa.Column("expires_at_ms", sa.BigInteger(), nullable=True))
        keys.add_column(sa.Column("previous_sha256", sa.String(length=64), nullable=True))
        keys.add_column(sa.Column("previous_until_ms", sa.BigInteger(), nullable=True))
        keys.create_foreign_key(op.f("fk_keys_user_id"), "users", ["user_id"], ["id"])
        keys.create_index("ix_keys_previous", ["previous_sha256"])
        keys.create_index("ix_keys_user", ["user_id", "project_id"])
    _make_sessions()
    _make_members()


def _make_users() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("email", sa.String(length=254), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("operator", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=40), nullable=True),
        sa.Column("deactivated_at_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("email", name=op.f("uq_users_email")),
    )
    op.create_index("ix_users_created", "users", ["created_at_ms", "id"])


def _make_members() -> None:
    op.create_table(
        "memberships",
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_memberships_project_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_memberships_user_id")),
        sa.PrimaryKeyConstraint("project_id", "user_id", name=op.f("pk_memberships")),
    )
    op.create_index("ix_memberships_user", "memberships", ["user_id"])
    op.create_table(
        "invitations",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=40), nullable=True),
        sa.Column("user_id", sa.String(length=40), nullable=True),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("accepted_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("accepted_by", sa.String(length=40), nullable=True),
        sa.Column("revoked_at_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_invitations_project_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_invitations_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invitations")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_invitations_secret_sha256")),
    )
    op.create_index("ix_invitations_project", "invitations", ["project_id", "created_at_ms", "id"])


def _make_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_used_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("agent", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_sessions_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_sessions_secret_sha256")),
    )
    op.create_index("ix_sessions_user", "sessions", ["user_id", "created_at_ms", "id"])
    op.create_table(
        "failed_sign_ins",
        sa.Column("account_sha256", sa.String(length=64), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("closed_until_ms", sa.BigInteger(), nullable=False),
        sa.Column("latest_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account_sha256", "address", name=op.f("pk_failed_sign_ins")),
    )
    op.create_index("ix_failed_sign_ins_latest", "failed_sign_ins", ["latest_at_ms"])
