"""Machines and fleets of a project's own bear its name; a node's key may be bound to a fleet, and limits a price.

Up to here a project's node spoke for any machine. What its attempts did is kept under the machine's new name. Where
the operator's nodes spoke for a machine of the same id too, its record stays the operator's.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# In this order: bans are found by the attempts, and machines by the nodes, as they were called before. An id of up to
# 87 characters has room for `@` and the longest id of a project.
STATEMENTS = (
    """
    UPDATE bans SET machine_id = machine_id || '@' || (
        SELECT min(nodes.project_id) FROM attempts JOIN nodes ON nodes.id = attempts.node_id
        WHERE attempts.job_id = bans.job_id AND attempts.machine_id = bans.machine_id
        AND nodes.project_id <> 'default'
    )
    WHERE length(machine_id) <= 87 AND EXISTS (
        SELECT 1 FROM attempts JOIN nodes ON nodes.id = attempts.node_id
        WHERE attempts.job_id = bans.job_id AND attempts.machine_id = bans.machine_id
        AND nodes.project_id <> 'default'
    )
    """,
    """
    UPDATE attempts SET machine_id = machine_id || '@' || (
        SELECT nodes.project_id FROM nodes WHERE nodes.id = attempts.node_id
    )
    WHERE length(machine_id) <= 87 AND node_id IN (SELECT id FROM nodes WHERE project_id <> 'default')
    """,
    """
    UPDATE strikes SET machine_id = (SELECT attempts.machine_id FROM attempts WHERE attempts.id = strikes.attempt_id)
    """,
    """
    UPDATE machines SET canary_job_id = NULL, machine_id = machine_id || '@' || (
        SELECT min(nodes.project_id) FROM nodes WHERE nodes.machine_id = machines.machine_id
    )
    WHERE length(machine_id) <= 87
    AND EXISTS (SELECT 1 FROM nodes WHERE nodes.machine_id = machines.machine_id)
    AND NOT EXISTS (
        SELECT 1 FROM nodes WHERE nodes.machine_id = machines.machine_id AND nodes.project_id = 'default'
    )
    """,
    """
    UPDATE nodes SET machine_id = machine_id || '@' || project_id, fleet = fleet || '@' || project_id
    WHERE project_id <> 'default' AND length(machine_id) <= 87 AND length(fleet) <= 87
    """,
)


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("keys", sa.Column("fleet", sa.String(length=128), nullable=True))
    op.add_column("keys", sa.Column("max_price_micro_usd_per_hour", sa.BigInteger(), nullable=True))
    for statement in STATEMENTS:
        op.execute(statement)
