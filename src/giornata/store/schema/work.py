"""Tables for jobs, for nodes, and for attempts at jobs by nodes."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text

from giornata.store.schema.columns import RowId, at, metadata

PLACE = ("interrupted DESC", "priority DESC", "turn", "id")
FOR_ANYONE = "state = 'queued' AND only_machine_id IS NULL"
PINNED = "state = 'queued' AND only_machine_id IS NOT NULL"
COUNTED = "state IN ('queued', 'running') AND only_machine_id IS NULL"
HANDED_OUT = "started_at_ms IS NOT NULL AND only_machine_id IS NULL"
# Any number of leases of pictures name the same job; attempts at a job have numbers of their own.
OF_PICTURES = "(CASE WHEN pictures > 0 THEN id ELSE '' END)"
# Not what was given up before it began: it took no turn.
HAS_A_TURN = "(state = 'queued' OR started_at_ms IS NOT NULL) AND only_machine_id IS NULL"
# Costs by day find the ledger's other intervals by their start. The times of an attempt may be of several clocks.
LONG = "ended_at_ms - started_at_ms > 86400000"


def _queue(name: str, *columns: str, where: str) -> Index:
    """Return an index of a part of the jobs."""
    keys = [sa.text(column) if " " in column else column for column in columns]
    return Index(name, *keys, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


nodes = Table(
    "nodes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("machine_id", String(128), nullable=False),
    Column("name", String(128), nullable=False),
    Column("fleet", String(128), nullable=False),
    Column("pid", Integer),
    Column("engine_pid", Integer),
    Column("device", String(128), nullable=False, server_default=""),
    Column("vram_bytes", BigInteger),
    Column("price_micro_usd_per_hour", BigInteger, nullable=False, server_default="0"),
    Column("kinds", sa.JSON, nullable=False),
    Column("held_models", sa.JSON, nullable=False),
    Column("versions", sa.JSON, nullable=False),
    Column("draining", Boolean, nullable=False, server_default=sa.false()),
    Column("instance_id", String(128)),  # what the provider calls it
    Column("places", Integer, nullable=False, server_default="1"),
    Column("checks", sa.JSON, nullable=False, server_default="{}"),  # what the node found out about itself
    Column("start", String(16), nullable=False, server_default=""),  # how far its start is; empty: it asks for work
    at("first_seen_at_ms"),
    at("last_seen_at_ms"),
    Index("ix_nodes_seen", "last_seen_at_ms"),
    Index("ix_nodes_instance", "fleet", "instance_id"),
    Index("ix_nodes_name", "name", "machine_id", "first_seen_at_ms"),  # who took the place of a node
)

node_models = Table(  # model files that a node says it has; most nodes write a row when a file comes or goes
    "node_models",
    metadata,
    Column("node_id", ForeignKey("nodes.id"), primary_key=True),
    Column("version", BigInteger),  # of the node's latest report; NULL: it has made none
    Column("held", sa.JSON, nullable=False),  # sha256s by tier
    Column("fetching", String(32)),  # the base key of what it fetches ahead
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("name", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("spec", sa.JSON, nullable=False),
    Column("model_key", String(2048), nullable=False, server_default=""),
    Column("joint_key", String(64)),  # None: it runs alone
    Column("shape_key", String(64), nullable=False, server_default=""),  # jobs with equal keys have equal steps
    Column("min_vram_bytes", BigInteger, nullable=False, server_default="0"),
    Column("only_machine_id", String(128)),  # a canary is for this one
    Column("turn", BigInteger, nullable=False, server_default="0"),  # its place in the queue, fair between projects
    Column("budget_micro_usd", BigInteger),
    Column("reserved_micro_usd", BigInteger, nullable=False, server_default="0"),
    at("budget_warned_at_ms", nullable=True),
    Column("paused_by", String(16)),  # whose budget is used up: the job's, the project's, or that of its month
    Column("priority", Integer, nullable=False),
    Column("interrupted", Boolean, nullable=False, server_default=sa.false()),
    Column("labels", sa.JSON, nullable=False),
    Column("total_steps", BigInteger),
    Column("retry_of", String(40)),
    Column("attempt_count", Integer, nullable=False, server_default="0"),
    Column("attempt_id", String(40)),  # the present or latest attempt
    Column("fruitless", Integer, nullable=False, server_default="0"),  # unannounced ends in a row without new steps
    Column("step", BigInteger, nullable=False, server_default="0"),
    Column("committed_step", BigInteger, nullable=False, server_default="0"),
    Column("phase", String(64), nullable=False, server_default=""),
    Column("error", Text),
    Column("faults", sa.JSON, nullable=False),
    Column("result", sa.JSON, nullable=False),
    at("created_at_ms"),
    at("started_at_ms", nullable=True),
    at("ended_at_ms", nullable=True),
    at("deadline_at_ms", nullable=True),
    Column("created_by", String(40)),  # the person or the key; NULL: the platform, or not known
    Column("billed_to", String(40)),  # the project that pays for its attempts; NULL: its own
    Column("suspect", Boolean, nullable=False, server_default=sa.false()),  # an audit refuted a machine that made it
    Column("pinned", Boolean, nullable=False, server_default=sa.false()),  # retention takes nothing of it
    at("deleted_at_ms", nullable=True),  # what is left then is what its bill names
    Column("parent_id", String(40)),  # the sweep that it belongs to
    Column("imported_cost_micro_usd", BigInteger),  # billed by the installation that it was imported from
    Index("ix_jobs_project", "project_id", "created_at_ms", "id"),
    # A list of one kind does not walk past the project's other jobs, nor that of the pinned past all of them.
    Index("ix_jobs_project_kind", "project_id", "kind", "created_at_ms", "id"),
    Index(
        "ix_jobs_project_pinned",
        "project_id",
        "id",
        sqlite_where=sa.text("pinned = 1"),
        postgresql_where=sa.text("pinned"),
    ),
    # The claim walks these four in order; tests hold the planner to them. What comes after the id is there so that
    # jobs for larger nodes are passed over without a look at their rows.
    _queue("ix_jobs_queue", "kind", *PLACE, "min_vram_bytes", where=FOR_ANYONE),
    _queue("ix_jobs_queue_model", "kind", "model_key", *PLACE, "min_vram_bytes", where=FOR_ANYONE),
    _queue(
        "ix_jobs_queue_joint",
        *("kind", "joint_key", *PLACE, "min_vram_bytes"),
        where=f"{FOR_ANYONE} AND joint_key IS NOT NULL",
    ),
    _queue("ix_jobs_pinned", "only_machine_id", "kind", *PLACE, where=PINNED),
    # What is queued is counted from this one alone; SQLite looks into the row for what only the condition names.
    _queue(
        "ix_jobs_demand",
        *("min_vram_bytes", "kind", "project_id", "created_at_ms", "state", "only_machine_id"),
        where=FOR_ANYONE,
    ),
    # A new job's turn is found from these two, and from the head of the queue.
    _queue("ix_jobs_project_turn", "project_id", "kind", "priority", "turn", where=HAS_A_TURN),
    # What a project runs and has queued is counted from this one alone.
    _queue("ix_jobs_counted", "state", "project_id", "kind", where=COUNTED),
    _queue("ix_jobs_handed_out", "kind", "priority", "started_at_ms", "turn", where=HANDED_OUT),
    Index(
        "ix_jobs_deadline",
        "deadline_at_ms",
        sqlite_where=sa.text("state IN ('queued', 'running', 'paused') AND deadline_at_ms IS NOT NULL"),
        postgresql_where=sa.text("state IN ('queued', 'running', 'paused') AND deadline_at_ms IS NOT NULL"),
    ),
    Index(
        "ix_jobs_reserved",
        "project_id",
        "reserved_micro_usd",
        sqlite_where=sa.text("state IN ('queued', 'running', 'paused') AND reserved_micro_usd > 0"),
        postgresql_where=sa.text("state IN ('queued', 'running', 'paused') AND reserved_micro_usd > 0"),
    ),
    Index(
        "ix_jobs_parent",
        "parent_id",
        sqlite_where=sa.text("parent_id IS NOT NULL"),
        postgresql_where=sa.text("parent_id IS NOT NULL"),
    ),
    Index(
        "ix_jobs_sweeps",
        "id",
        sqlite_where=sa.text("kind = 'sweep' AND state IN ('running', 'paused')"),
        postgresql_where=sa.text("kind = 'sweep' AND state IN ('running', 'paused')"),
    ),
    Index(
        "ix_jobs_paused",
        "project_id",
        "paused_by",
        sqlite_where=sa.text("state = 'paused'"),
        postgresql_where=sa.text("state = 'paused'"),
    ),
)

job_inputs = Table(  # files that a job reads besides its datasets, by the part that they play
    "job_inputs",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("role", String(32), primary_key=True),
    Column("project_id", String(40), nullable=False),
    Column("sha256", String(64), nullable=False),
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_job_inputs_blob", "project_id", "sha256"),
)

bans = Table(
    "bans",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("machine_id", String(128), primary_key=True),
    Column("reason", String(32), nullable=False),
    at("at_ms"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("node_id", String(64), nullable=False),
    Column("machine_id", String(128), nullable=False),
    Column("node_name", String(128), nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("price_micro_usd_per_hour", BigInteger, nullable=False),
    at("started_at_ms"),
    at("first_step_at_ms", nullable=True),
    at("renewed_at_ms"),
    at("lease_expires_at_ms"),
    at("ended_at_ms", nullable=True),
    Column("lapsed", Boolean, nullable=False, server_default=sa.false()),
    Column("reason", String(32)),
    # One fault ended it together with others, and nobody can tell whose it was.
    Column("shared_fault", Boolean, nullable=False, server_default=sa.false()),
    Column("message", Text),
    Column("exit_code", Integer),
    Column("log_tail", Text),
    Column("start_step", BigInteger, nullable=False, server_default="0"),
    Column("last_step", BigInteger, nullable=False, server_default="0"),
    Column("committed_step", BigInteger, nullable=False, server_default="0"),
    Column("phase", String(64), nullable=False, server_default=""),
    Column("order", String(16), nullable=False, server_default="continue"),
    Column("first_step", BigInteger),  # how far it was at first_step_at_ms
    Column("stepped_to", BigInteger),  # its latest step that a beat or metrics told of
    at("stepped_at_ms", nullable=True),  # ... and when
    Column("order_reason", String(32)),  # how the attempt is to end when it obeys; None: as the node says
    at("ordered_at_ms", nullable=True),  # when its node was first told
    # Pictures of its lease, whose job is then the order of the first of them; 0: an attempt at a job.
    Column("pictures", Integer, nullable=False, server_default="0"),
    Index("uq_attempts_job_number", "job_id", "number", sa.text(OF_PICTURES), unique=True),
    Index("uq_attempts_request", "node_id", "request_id", unique=True),
    Index(
        "ix_attempts_live_lease",
        "lease_expires_at_ms",
        sqlite_where=sa.text("ended_at_ms IS NULL"),
        postgresql_where=sa.text("ended_at_ms IS NULL"),
    ),
    Index("ix_attempts_node", "node_id", "ended_at_ms"),  # who lives on a node, and who was there lately
    Index("ix_attempts_machine", "machine_id", "started_at_ms"),
    # At most one attempt of a job is alive: the database says so too.
    Index(
        "uq_attempts_live_job",
        "job_id",
        sa.text(OF_PICTURES),
        unique=True,
        sqlite_where=sa.text("ended_at_ms IS NULL"),
        postgresql_where=sa.text("ended_at_ms IS NULL"),
    ),
    Index(
        "ix_attempts_ended",
        "ended_at_ms",
        sqlite_where=sa.text("ended_at_ms IS NOT NULL"),
        postgresql_where=sa.text("ended_at_ms IS NOT NULL"),
    ),
    Index("ix_attempts_long", "ended_at_ms", sqlite_where=sa.text(LONG), postgresql_where=sa.text(LONG)),
)

strikes = Table(
    "strikes",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("machine_id", String(128), nullable=False),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False, unique=True),
    Column("reason", String(32), nullable=False),
    at("at_ms"),
    Index("ix_strikes_machine", "machine_id", "at_ms"),
)
