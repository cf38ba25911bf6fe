"""A fleet at work, put into the database by SQL: nodes, and a running job with a live attempt for each."""

import json
import time
from dataclasses import dataclass

import sqlalchemy as sa

from benchmarks.rig.backlog import KIND
from benchmarks.rig.databases import engine_of
from benchmarks.rig.server import SECRETS_KEY
from giornata.cli.operate.composition import FernetSealer
from giornata.control.access.authenticate import attempt_token

LEASE_MS = 90_000

_STATEMENTS = (
    "INSERT INTO nodes (id, project_id, machine_id, name, fleet, price_micro_usd_per_hour, kinds, held_models, "
    "versions, first_seen_at_ms, last_seen_at_ms) SELECT 'node_' || lpad(CAST(n AS text), 10, '0'), 'default', "
    "'machine-' || n, 'node-' || n, 'load', 250000, '[\"{kind}\"]', '[]', '{{}}', :now, :now FROM {numbers}",
    "INSERT INTO jobs (id, project_id, kind, name, state, spec, model_key, priority, labels, faults, result, "
    "total_steps, created_at_ms, started_at_ms, attempt_count, attempt_id) SELECT 'job_run' || n, 'default', "
    "'{kind}', 'load', 'running', '{{}}', 'model-3', 0, '{{}}', '[]', '{{}}', 600, :now, :now, 1, 'att_run' || n "
    "FROM {numbers}",
    "INSERT INTO attempts (id, job_id, number, node_id, machine_id, node_name, request_id, price_micro_usd_per_hour, "
    "started_at_ms, first_step_at_ms, renewed_at_ms, lease_expires_at_ms) SELECT 'att_run' || n, 'job_run' || n, 1, "
    "'node_' || lpad(CAST(n AS text), 10, '0'), 'machine-' || n, 'node-' || n, 'request-' || n, 250000, :now, :now, "
    ":now, :now + :lease FROM {numbers}",
    "INSERT INTO ledger (attempt_id, seq, project_id, job_id, from_ms, to_ms, price_micro_usd_per_hour, "
    "amount_micro_usd) SELECT 'att_run' || n, 0, 'default', 'job_run' || n, :now, :now, 250000, 0 FROM {numbers}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLease:
    """A lease that a node holds."""

    attempt_id: str
    token: str


def node_id(number: int) -> str:
    """As the statements above have it."""
    return f"node_{number:010d}"


def begin_fleet(url: str, size: int) -> list[NodeLease]:
    """Nodes 1 to `size` of a PostgreSQL, each with a lease that began just now."""
    engine, numbers = engine_of(url), f"generate_series(1, {size}) n"
    with engine.begin() as connection:
        values = {"now": int(time.time() * 1000), "lease": LEASE_MS}
        for statement in _STATEMENTS:
            used = {name: value for name, value in values.items() if f":{name}" in statement}
            connection.execute(sa.text(statement.format(kind=KIND, numbers=numbers)), used)
        sealed = str(connection.scalar(sa.text("SELECT sealed_signing_key FROM installation")))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
    _, key = json.loads(FernetSealer(SECRETS_KEY).unseal(sealed))
    names = [f"att_run{number}" for number in range(1, size + 1)]
    return [NodeLease(attempt_id=name, token=attempt_token(key.encode(), name)) for name in names]
