"""Orders of pictures by the million, inserted by a few statements.

A large addition drops the indexes of the queue first and builds them at its end: sorting ten million keys takes a
fraction of the time of as many insertions.
"""

import time

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


LARGE = 50_000
AT_ONCE = 500_000  # pictures in a transaction
SETTINGS = ("synchronous_commit = off", "maintenance_work_mem = '512MB'", "max_parallel_maintenance_workers = 2")
_INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'pictures' AND indexname LIKE 'ix\\_%%'"


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
        began_s = time.perf_counter()
        with self._autocommit() as connection:
            for setting in SETTINGS:
                connection.exec_driver_sql(f"SET {setting}")
            indexes = connection.exec_driver_sql(_INDEXES).all() if missing >= LARGE else []
            for name, _ in indexes:
                connection.exec_driver_sql(f"DROP INDEX {name}")
            self._insert(connection, orders=-(-missing // PICTURES_PER_ORDER))
            for _, definition in indexes:
                connection.exec_driver_sql(definition)
            connection.exec_driver_sql("VACUUM ANALYZE pictures")
            connection.exec_driver_sql("CHECKPOINT")
        if indexes:
            print(f"{missing:>10} pictures were queued in {time.perf_counter() - began_s:.0f} s", flush=True)

    def _insert(self, connection: sa.Connection, *, orders: int) -> None:
        """Insert orders, some at a time. Each statement is a transaction of its own."""
        end = self._next + orders
        while self._next < end:
            last = min(end, self._next + AT_ONCE // PICTURES_PER_ORDER) - 1
            numbers = {"first": self._next, "last": last, "each": PICTURES_PER_ORDER, "work": PIXEL_STEPS}
            for statement in (_JOBS, _PICTURES, _ORDERS):
                connection.exec_driver_sql(statement.format(**numbers, bases=BASES, spec=SPEC))
            self._next = last + 1

    def queued(self) -> int:
        """The pictures that wait."""
        # In the words of the partial indexes: the table of ten million has gigabytes.
        return self._number("SELECT count(*) FROM pictures WHERE is_queued")

    def log_bytes(self) -> int:
        """The write-ahead log that was ever written."""
        return self._number("SELECT CAST(pg_current_wal_lsn() - '0/0'::pg_lsn AS bigint)")

    def disk_bytes(self) -> int:
        """The database on the disk, after what autovacuum would do in time."""
        with self._autocommit() as connection:
            connection.exec_driver_sql("VACUUM")
        return self._number("SELECT pg_database_size(current_database())")

    def commits(self) -> int:
        """The transactions of this database that were committed; the database tells of them with a delay."""
        return self._number("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")

    def _autocommit(self) -> sa.Connection:
        return self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def _number(self, statement: str) -> int:
        with self._engine.connect() as connection:
            return int(connection.scalar(sa.text(statement)) or 0)
