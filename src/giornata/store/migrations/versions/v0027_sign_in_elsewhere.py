"""People sign in at an OpenID provider, and approve the sign-in of a command line in a browser."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("keys", sa.Column("login", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "user_identities",
        sa.Column("issuer", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_user_identities_user_id")),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_user_identities")),
    )
    op.create_index("ix_user_identities_user", "user_identities", ["user_id"])
    op.create_table(
        "device_sign_ins",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("device_code_sha256", sa.String(length=64), nullable=False),
        sa.Column("user_code_sha256", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=True),
        sa.Column("host_name", sa.String(length=128), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("key_expires_in_s", sa.Integer(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("polled_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("interval_s", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("user_id", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_device_sign_ins_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_sign_ins")),
        sa.UniqueConstraint("device_code_sha256", name=op.f("uq_device_sign_ins_device_code_sha256")),
        sa.UniqueConstraint("user_code_sha256", name=op.f("uq_device_sign_ins_user_code_sha256")),
    )
    op.create_index("ix_device_sign_ins_expires", "device_sign_ins", ["expires_at_ms"])
    op.create_index("ix_device_sign_ins_address", "device_sign_ins", ["address", "expires_at_ms"])
