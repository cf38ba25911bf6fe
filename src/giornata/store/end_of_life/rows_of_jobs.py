"""Delete the rows that hang on jobs, some at a time, and say which bytes they named."""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries.end_of_life_store import TakenRows
from giornata.control.ports.user_queries.records import UploadRecord
from giornata.domain.generation.picture import PictureState, picture_key
from giornata.store.database.rows import columns, record_of
from giornata.store.schema import (
    artifacts,
    attempts,
    checkpoints,
    events,
    imported_attempts,
    job_inputs,
    logs,
    metrics,
    order_terms,
    picture_failures,
    picture_orders,
    picture_tags,
    pictures,
    uploads,
    webhook_cursor,
    webhooks,
)

Condition = sa.ColumnElement[bool]
UPLOAD_COLUMNS = columns(uploads, UploadRecord)
NAMING_BYTES = (checkpoints, artifacts, job_inputs)
"""Tables with a row for each file of a job."""
NEWEST_EVENT = sa.select(sa.func.max(events.c.id)).scalar_subquery()
HAS_BYTES = (pictures.c.state == PictureState.SUCCEEDED) & pictures.c.sha256.is_not(None)


def take_some(
    connection: sa.Connection, table: sa.Table, condition: Condition, limit: int, *returned: sa.ColumnElement[Any]
) -> Sequence[Any]:
    """Delete at most `limit` rows of the table that meet the condition; return these columns of them."""
    key = list(table.primary_key.columns)
    some = sa.select(*key).where(condition).limit(limit)
    within = key[0].in_(some) if len(key) == 1 else sa.tuple_(*key).in_(some)
    return connection.execute(sa.delete(table).where(within).returning(*(returned or key))).all()


def told_events() -> Condition:
    """Return the condition of an event that may go: each webhook has had it, and it is not the newest.

    SQLite gives the id of the newest row again when that row is deleted, and readers remember ids.
    """
    cursor = sa.select(webhook_cursor.c.event_id).scalar_subquery()
    heard = sa.exists().where(webhooks.c.project_id == events.c.project_id, webhooks.c.enabled)
    return ((events.c.id <= cursor) | ~heard) & (events.c.id < NEWEST_EVENT)


def take_files(connection: sa.Connection, table: sa.Table, condition: Condition, limit: int) -> TakenRows:
    """Delete rows of a table that names files; return their hashes."""
    found = take_some(connection, table, condition, limit, table.c.sha256)
    return TakenRows(rows=len(found), sha256s=frozenset(row.sha256 for row in found))


def take_history(connection: sa.Connection, job_id: str, limit: int) -> int:
    """Delete log lines, metrics, imported attempts and events of a job, some of each; return their number.

    An event that stays, because it is the newest, is blanked.
    """
    taken = len(take_some(connection, logs, logs.c.job_id == job_id, limit))
    taken += len(take_some(connection, metrics, metrics.c.job_id == job_id, limit))
    taken += len(take_some(connection, imported_attempts, imported_attempts.c.job_id == job_id, limit))
    taken += len(take_some(connection, events, (events.c.job_id == job_id) & told_events(), limit))
    newest = (events.c.job_id == job_id) & (events.c.id == NEWEST_EVENT)
    connection.execute(sa.update(events).where(newest).values(data={}))
    return taken


def events_left(connection: sa.Connection, job_id: str) -> int:
    """Return how many events of the job still have to go: those that a webhook waits for."""
    waiting = (events.c.job_id == job_id) & (events.c.id < NEWEST_EVENT)
    return connection.scalar(sa.select(sa.func.count()).select_from(events).where(waiting)) or 0


def take_pictures(connection: sa.Connection, order_id: str, limit: int) -> TakenRows:
    """Delete pictures of an order; return the keys of their bytes. The order's row goes with the last of them."""
    for table in (picture_failures, picture_tags, order_terms):
        connection.execute(sa.delete(table).where(table.c.order_id == order_id))
    wanted = (pictures.c.project_id, pictures.c.lease, pictures.c.sha256, pictures.c.size_bytes)
    found = take_some(connection, pictures, pictures.c.order_id == order_id, limit, *wanted)
    if not found:
        connection.execute(sa.delete(picture_orders).where(picture_orders.c.order_id == order_id))
    return TakenRows(rows=len(found), objects=picture_objects(found))


def picture_objects(rows: Iterable[Sequence[Any]]) -> dict[str, int]:
    """Return the sizes by key of pictures with bytes, of rows of (project, lease, sha256, size)."""
    return {picture_key(*row[:3]): row[3] for row in map(tuple, rows) if None not in row}


def take_uploads(connection: sa.Connection, condition: Condition, limit: int) -> TakenRows:
    """Delete rows of uploads; return those that nobody completed, whose bytes are no blob."""
    found = take_some(connection, uploads, condition, limit, *UPLOAD_COLUMNS)
    records = [record_of(UploadRecord, row) for row in found]
    return TakenRows(rows=len(found), uploads=tuple(each for each in records if each.completed_at_ms is None))


def of_attempts(job_id: str) -> Condition:
    """Return the condition of an upload that an attempt at the job asked for."""
    return uploads.c.attempt_id.in_(sa.select(attempts.c.id).where(attempts.c.job_id == job_id))


def joined(*some: TakenRows) -> TakenRows:
    """Return all of it as one."""
    return TakenRows(
        rows=sum(each.rows for each in some),
        sha256s=frozenset().union(*(each.sha256s for each in some)),
        objects={key: size for each in some for key, size in each.objects.items()},
        uploads=tuple(upload for each in some for upload in each.uploads),
    )
