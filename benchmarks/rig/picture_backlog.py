"""Orders of pictures by the million, inserted by a few statements."""

import sqlalchemy as sa

from benchmarks.rig.databases import engine_of

PICTURES_PER_ORDER = 1000
PIXEL_STEPS = 512 * 512 * 20
BASES = 100
SPEC = '{"model": {"name": "base"}, "width": 512, "height": 512, "num_inference_steps": 20}'
_JOBS = (
    "INSERT INTO jobs (id, project_id, kind, name, state, spec, priority, labels, faults, result, created_at_ms) "
    "SELECT 'job_' || lpad(o::text, 26, '0'), 'default', 'generate', 'load', 'queued', '{spec}', 0, '{{}}', "
    "'[]', '{{}}', 1700000000000 FROM generate_series({first}::bigint, {last}) o"
)
_ORDERS = (
    "INSERT INTO picture_orders (order_id, project_id, priority, pictures, told_at_ms, ends_turn) "
    "SELECT 'job_' || lpad(o::text, 26, '0'), 'default', 0, {each}, 0, (o + 1) * {each} * {work} "
    "FROM generate_series({first}::bigint, {last}) o"
)
# Each order has a base of its own, and all of its pictures are of one batch key.
_PICTURES = (
    "INSERT INTO pictures (order_id, number, project_id, state, batch_key, base_key, turn, priority, seed, differs, "
    "pixel_steps, together) "
    "SELECT 'job_' || lpad(o::text, 26, '0'), n, 'default', 'queued', md5('batch' || mod(o, {bases})), "
    "md5('base' || mod(o, {bases})), (o * {each} + n) * {work}, 0, n, "
    "json_build_object('prompt', 'a picture of a house by the sea, number ' || n), {work}, 64 "
    "FROM generate_series({first}::bigint, {last}) o, generate_series(0, {each} - 1) n"
)


class PictureQueue:
    """The pictures of one PostgreSQL database, beside the server that serves it."""

    def __init__(self, url: str) -> None:
        self._engine = engine_of(url)
        self._next = 0

    def fill_to(self, depth: int) -> None:
        """Add orders until at least `depth` pictures are queued, and do what autovacuum would do in time."""
        missing = depth - self.queued()
        if missing <= 0:
            return
        last = self._next + -(-missing // PICTURES_PER_ORDER) - 1
        numbers = {"first": self._next, "last": last, "each": PICTURES_PER_ORDER, "work": PIXEL_STEPS, "bases": BASES}
        with self._engine.begin() as connection:
            for statement in (_JOBS, _ORDERS, _PICTURES):
                connection.exec_driver_sql(statement.format(**numbers, spec=SPEC))
        self._next = last + 1
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE pictures")
            connection.exec_driver_sql("CHECKPOINT")

    def queued(self) -> int:
        """The pictures that wait."""
        return self._number("SELECT count(*) FROM pictures WHERE state = 'queued'")

    def log_bytes(self) -> int:
        """The write-ahead log that was ever written."""
        return self._number("SELECT CAST(pg_current_wal_lsn() - '0/0'::pg_lsn AS bigint)")

    def disk_bytes(self) -> int:
        """The database on the disk, after what autovacuum would do in time."""
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM")
        return self._number("SELECT pg_database_size(current_database())")

    def commits(self) -> int:
        """The transactions of this database that were committed; the database tells of them with a delay."""
        return self._number("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")

    def _number(self, statement: str) -> int:
        with self._engine.connect() as connection:
            return int(connection.scalar(sa.text(statement)) or 0)
