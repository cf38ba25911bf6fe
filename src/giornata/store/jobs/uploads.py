"""Queries for blobs, uploads and caches."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import user_store
from giornata.control.ports.user_queries.records import BlobRecord, CacheRecord, StandingRecord, UploadRecord
from giornata.domain.errors import Unavailable
from giornata.store.database.rows import Queries, columns, insert_unless_there, record_of
from giornata.store.schema import attempts, blobs, caches, jobs, uploads

BLOB_COLUMNS = columns(blobs, BlobRecord)
STANDING_COLUMNS = columns(blobs, StandingRecord)
UPLOAD_COLUMNS = columns(uploads, UploadRecord)
TRIES = 3
THERE = blobs.c.lost_at_ms.is_(None)
_THESE = (blobs.c.project_id == sa.bindparam("project")) & blobs.c.sha256.in_(sa.bindparam("sha256s", expanding=True))
# Made once: building a statement costs more than running it.
_BLOBS = sa.select(*BLOB_COLUMNS).where(_THESE, THERE)
# Locked in one order: two transactions that touch the same blobs must not wait for one another.
_HOLD = sa.select(blobs.c.sha256).where(_THESE, THERE).order_by(blobs.c.sha256).with_for_update(key_share=True)
_at = sa.bindparam("at", type_=sa.BigInteger())
_TOUCH = sa.update(blobs).where(_THESE, THERE, blobs.c.created_at_ms < _at).values(created_at_ms=_at)
_UPLOAD = (uploads.c.id == sa.bindparam("wanted")) & (uploads.c.project_id == sa.bindparam("project"))
_GET = sa.select(*UPLOAD_COLUMNS).where(_UPLOAD)
_COMPLETE = sa.update(uploads).where(_UPLOAD).values(completed_at_ms=sa.func.coalesce(uploads.c.completed_at_ms, _at))
_INSERT = sa.insert(uploads)
# The job is held, as by a commit, and before any blob: two that hold what the other wants wait for ever.
_HOLD_JOB = (
    sa.select(jobs.c.project_id)
    .where(jobs.c.id == sa.select(attempts.c.job_id).where(attempts.c.id == sa.bindparam("wanted")).scalar_subquery())
    .with_for_update(read=True)
)
_ALIVE = sa.select(attempts.c.id).where(attempts.c.id == sa.bindparam("wanted"), attempts.c.ended_at_ms.is_(None))


class Uploads(Queries, user_store.Uploads):
    # ---- blobs

    def blobs(self, project_id: str, sha256s: Sequence[str]) -> dict[str, BlobRecord]:
        found = self._connection.execute(_BLOBS, {"project": project_id, "sha256s": sha256s})
        return {row.sha256: record_of(BlobRecord, row) for row in found}

    def touch_blobs(self, project_id: str, sha256s: Sequence[str], *, at_ms: int) -> set[str]:
        these = {"project": project_id, "sha256s": sha256s}
        found = set(self._connection.scalars(_HOLD, these))
        self._connection.execute(_TOUCH, {**these, "at": at_ms})
        return found

    def add_blob(self, project_id: str, blob: BlobRecord, *, at_ms: int) -> str:
        row = {"project_id": project_id, "sha256": blob.sha256, "size_bytes": blob.size_bytes, "key": blob.key}
        statement = insert_unless_there(self._dialect_name, blobs, **row, created_at_ms=at_ms)
        for _ in range(TRIES):
            if self._connection.execute(statement).first() is not None:
                return blob.key
            # Renewed, so that the collector does not take it before somebody has referred to it. What was lost is
            # had again from here on, for all that refer to it; what lies under the old key is garbage.
            standing = self._connection.scalar(
                sa.update(blobs)
                .where(_this(project_id, blob.sha256))
                .values(
                    created_at_ms=at_ms,
                    key=sa.case((THERE, blobs.c.key), else_=blob.key),
                    looked_at_ms=sa.case((THERE, blobs.c.looked_at_ms), else_=None),
                    lost_at_ms=None,
                )
                .returning(blobs.c.key)
            )
            if standing is not None:
                return str(standing)
        raise Unavailable("the same bytes are being stored and deleted at this moment; try again")

    def standing(self, project_id: str, sha256: str) -> StandingRecord | None:
        row = self._connection.execute(sa.select(*STANDING_COLUMNS).where(_this(project_id, sha256))).first()
        return None if row is None else record_of(StandingRecord, row)

    def note_look(self, project_id: str, sha256: str, *, key: str, at_ms: int, lost: bool) -> bool:
        found = {"looked_at_ms": at_ms, "lost_at_ms": at_ms if lost else None}
        there = sa.update(blobs).where(_this(project_id, sha256), blobs.c.key == key, THERE).values(found)
        return self._connection.execute(there).rowcount == 1

    def note_inspection(self, project_id: str, sha256: str, inspection: dict[str, Any]) -> None:
        this = _this(project_id, sha256)
        self._connection.execute(sa.update(blobs).where(this).values(inspection=inspection))

    # ---- uploads

    def add(self, records: Sequence[UploadRecord]) -> None:
        if records:
            self._connection.execute(_INSERT, [asdict(record) for record in records])

    def get(self, upload_id: str, *, project_id: str) -> UploadRecord | None:
        row = self._connection.execute(_GET, {"wanted": upload_id, "project": project_id}).first()
        return None if row is None else record_of(UploadRecord, row)

    def complete(self, upload_id: str, *, project_id: str, at_ms: int) -> bool:
        done = self._connection.execute(_COMPLETE, {"wanted": upload_id, "project": project_id, "at": at_ms})
        return done.rowcount == 1

    def drop(self, upload_id: str, *, project_id: str) -> bool:
        open_one = (
            (uploads.c.id == upload_id) & (uploads.c.project_id == project_id) & uploads.c.completed_at_ms.is_(None)
        )
        return self._connection.execute(sa.delete(uploads).where(open_one)).rowcount == 1

    # ---- attempts

    def live_attempt_project(self, attempt_id: str) -> str | None:
        project_id = self._connection.scalar(_HOLD_JOB, {"wanted": attempt_id})
        # Asked after the lock was had: nobody ends it from here on.
        alive = self._connection.scalar(_ALIVE, {"wanted": attempt_id})
        return None if alive is None else project_id

    def cache(self, project_id: str, key: str) -> CacheRecord | None:
        return self.caches(project_id, [key]).get(key)

    def caches(self, project_id: str, keys: Collection[str]) -> Mapping[str, CacheRecord]:
        same_bytes = (blobs.c.project_id == caches.c.project_id) & (blobs.c.sha256 == caches.c.sha256)
        query = (
            sa.select(caches.c.key, caches.c.sha256, caches.c.size_bytes, caches.c.used_at_ms, blobs.c.key)
            .join(blobs, same_bytes)
            .where(caches.c.project_id == project_id, caches.c.key.in_(keys), THERE)
        )
        return {
            name: CacheRecord(sha256=sha256, size_bytes=size_bytes, key=key, used_at_ms=used_at_ms)
            for name, sha256, size_bytes, used_at_ms, key in self._connection.execute(query)
        }

    def add_cache(self, project_id: str, key: str, sha256: str, size_bytes: int, *, at_ms: int) -> bool:
        lost = sa.select(blobs.c.sha256).where(blobs.c.project_id == project_id, ~THERE)
        this = (caches.c.project_id == project_id) & (caches.c.key == key)
        self._connection.execute(sa.delete(caches).where(this, caches.c.sha256.in_(lost)))
        row = {"project_id": project_id, "key": key, "sha256": sha256, "size_bytes": size_bytes}
        statement = insert_unless_there(self._dialect_name, caches, **row, created_at_ms=at_ms, used_at_ms=at_ms)
        return self._connection.execute(statement).first() is not None

    def cache_used(self, project_id: str, key: str, *, at_ms: int) -> None:
        this = (caches.c.project_id == project_id) & (caches.c.key == key)
        self._connection.execute(sa.update(caches).where(this).values(used_at_ms=at_ms))


def _this(project_id: str, sha256: str) -> sa.ColumnElement[bool]:
    return (blobs.c.project_id == project_id) & (blobs.c.sha256 == sha256)
