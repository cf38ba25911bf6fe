"""Queued jobs by the million, inserted by one statement."""

import sqlalchemy as sa

from benchmarks.rig.databases import engine_of

KIND = "x-load"
MODELS = 10

_COLUMNS = (
    "INSERT INTO jobs (id, project_id, kind, name, state, spec, model_key, priority, labels, faults, result, "
    "total_steps, created_at_ms) "
)
# Ages as if one job a second had come in; ten models in turn; identifiers in no order, as the product draws them.
_VALUES = (
    "'default', '{kind}', 'load', 'queued', '{{}}', 'model-' || (n % {models}), 0, '{{}}', '[]', '{{}}', 600, "
    "1700000000000 + 1000 * n"
)
_POSTGRES = (
    _COLUMNS
    + "SELECT 'job_' || substr(md5(random()::text || n), 1, 26), "
    + _VALUES
    + " FROM generate_series({first}, {last}) n"
)
_SQLITE = (
    _COLUMNS
    + "WITH RECURSIVE numbers(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last}) "
    + "SELECT 'job_' || lower(hex(randomblob(13))), "
    + _VALUES
    + " FROM numbers"
)
_TABLES = ("jobs", "attempts", "events", "ledger", "nodes", "checkpoints", "blobs", "uploads", "metrics", "logs")


class BenchmarkQueue:
    """The queue of one database, beside the server that serves it."""

    def __init__(self, url: str) -> None:
        self._engine = engine_of(url)
        self._next = 1

    def fill_to(self, depth: int) -> None:
        """Add jobs until `depth` are queued. A large addition is followed by what autovacuum would do in time."""
        missing = depth - self._depth()
        if missing <= 0:
            return
        dialect = self._engine.dialect.name
        statement = (_POSTGRES if dialect == "postgresql" else _SQLITE).format(
            kind=KIND, models=MODELS, first=self._next, last=self._next + missing - 1
        )
        with self._engine.begin() as connection:
            connection.execute(sa.text(statement))
        self._next += missing
        if missing > 900 and dialect == "postgresql":
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE jobs")
                connection.exec_driver_sql("CHECKPOINT")

    def end_running(self, now_ms: int) -> None:
        """End the jobs that were claimed, and their attempts, as nodes would that succeed."""
        ours = f"state = 'running' AND kind = '{KIND}'"
        attempts = f"ended_at_ms IS NULL AND job_id IN (SELECT id FROM jobs WHERE {ours})"
        with self._engine.begin() as connection:
            connection.exec_driver_sql(
                f"UPDATE attempts SET ended_at_ms = {now_ms}, reason = 'succeeded' WHERE {attempts}"
            )
            connection.exec_driver_sql(f"UPDATE jobs SET state = 'succeeded', ended_at_ms = {now_ms} WHERE {ours}")

    def row_counts(self) -> dict[str, int]:
        """Rows by table."""
        with self._engine.connect() as connection:
            return {
                table: int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() or 0)
                for table in _TABLES
            }

    def _depth(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.scalar(sa.text("SELECT count(*) FROM jobs WHERE state = 'queued'")) or 0)
