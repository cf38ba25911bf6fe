"""Queries that delete jobs, datasets and projects, and remember what is left to do."""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import end_of_life_store
from giornata.control.ports.user_queries.end_of_life_store import DeletionRecord, TakenBlob, TakenRows
from giornata.domain.billing.quotas import QUOTA_NAMES
from giornata.domain.jobs.job import TERMINAL
from giornata.protocol.specs import AUDIT_KIND, VALIDATE_KIND
from giornata.store.database.rows import Queries, columns, record_of
from giornata.store.end_of_life.rows_of_jobs import (
    NAMING_BYTES,
    events_left,
    joined,
    of_attempts,
    take_files,
    take_history,
    take_pictures,
    take_some,
    take_uploads,
)
from giornata.store.garbage import unreferenced
from giornata.store.schema import (
    attempts,
    blobs,
    caches,
    checkpoints,
    dataset_items,
    datasets,
    deletions,
    device_sign_ins,
    idempotency,
    invitations,
    jobs,
    keys,
    memberships,
    models,
    project_secrets,
    projects,
    uploads,
    webhooks,
)

COLUMNS = columns(deletions, DeletionRecord)
LIVE = jobs.c.state.not_in(sorted(TERMINAL))
OF_PEOPLE = (memberships, invitations, device_sign_ins, project_secrets, webhooks)
MADE_FOR_OTHERS = (VALIDATE_KIND, AUDIT_KIND)
DATASET_FIELDS = ("dataset", "class_dataset")
NO_LIMITS: dict[str, Any] = dict.fromkeys(QUOTA_NAMES)
BLANK: dict[str, Any] = {"spec": {}, "labels": {}, "error": None, "faults": [], "result": {}, "pinned": False}


class Deletions(Queries, end_of_life_store.Deletions):
    # ---- the lines that stay

    def begin(self, deletion: DeletionRecord) -> int:
        row = {name: value for name, value in asdict(deletion).items() if name != "id"}
        made: int = self._connection.execute(sa.insert(deletions).values(row).returning(deletions.c.id)).scalar_one()
        return made

    def note(self, deletion_id: int, *, objects: int, size_bytes: int) -> None:
        more = {"objects": deletions.c.objects + objects, "size_bytes": deletions.c.size_bytes + size_bytes}
        self._connection.execute(sa.update(deletions).where(deletions.c.id == deletion_id).values(more))

    def finish(self, deletion_id: int, *, at_ms: int) -> None:
        this = deletions.c.id == deletion_id
        self._connection.execute(sa.update(deletions).where(this).values(finished_at_ms=at_ms))

    def unfinished(self, *, limit: int) -> list[DeletionRecord]:
        query = sa.select(*COLUMNS).where(deletions.c.finished_at_ms.is_(None)).order_by(deletions.c.id).limit(limit)
        return [record_of(DeletionRecord, row) for row in self._connection.execute(query)]

    # ---- jobs

    def empty_job(self, job_id: str, *, at_ms: int) -> bool:
        this = (jobs.c.id == job_id) & jobs.c.deleted_at_ms.is_(None)
        hidden = sa.update(jobs).where(this).values(deleted_at_ms=at_ms, name=jobs.c.id, **BLANK)
        if self._connection.execute(hidden).rowcount != 1:
            return False
        said = {"message": None, "log_tail": None}
        self._connection.execute(sa.update(attempts).where(attempts.c.job_id == job_id).values(said))
        return True

    def made_for(self, job_id: str, *, project_id: str) -> list[str]:
        named = (jobs.c.kind.in_(MADE_FOR_OTHERS), jobs.c.name.startswith(f"{job_id}@", autoescape=True))
        query = sa.select(jobs.c.id).where(jobs.c.project_id == project_id, *named, jobs.c.deleted_at_ms.is_(None))
        return list(self._connection.scalars(query.order_by(jobs.c.id)))

    def swept_by(self, sweep_id: str) -> list[str]:
        mine = (jobs.c.parent_id == sweep_id) & jobs.c.deleted_at_ms.is_(None)
        return list(self._connection.scalars(sa.select(jobs.c.id).where(mine).order_by(jobs.c.id)))

    def pinned_of_job(self, job_id: str) -> list[str]:
        whole = sa.select(jobs.c.id).where(jobs.c.id == job_id, jobs.c.pinned)
        steps = sa.select(checkpoints.c.step).where(checkpoints.c.job_id == job_id, checkpoints.c.pinned)
        found = [f"{job_id}@{step}" for step in self._connection.scalars(steps.order_by(checkpoints.c.step))]
        return [*self._connection.scalars(whole), *found]

    def take_job_rows(self, job_id: str, *, limit: int) -> TakenRows:
        files = (take_files(self._connection, each, each.c.job_id == job_id, limit) for each in NAMING_BYTES)
        taken = joined(
            *files,
            take_pictures(self._connection, job_id, limit),
            take_uploads(self._connection, of_attempts(job_id), limit),
            TakenRows(rows=take_history(self._connection, job_id, limit)),
        )
        if not taken.rows and not self.has_events(job_id):
            # Deliveries go with their webhook, so it hears of the end first.
            self._connection.execute(sa.delete(webhooks).where(webhooks.c.job_id == job_id))
        return taken

    def has_events(self, job_id: str) -> bool:
        return events_left(self._connection, job_id) > 0

    def attempt_ids(self, job_id: str) -> list[str]:
        query = sa.select(attempts.c.id).where(attempts.c.job_id == job_id, attempts.c.pictures == 0)
        return list(self._connection.scalars(query.order_by(attempts.c.number)))

    def take_caches(self, project_id: str, attempt_ids: Collection[str]) -> frozenset[str]:
        if not attempt_ids:
            return frozenset()
        made = sa.or_(*(blobs.c.key.startswith(f"{project_id}/{each}/", autoescape=True) for each in attempt_ids))
        theirs = sa.select(blobs.c.sha256).where(blobs.c.project_id == project_id, made)
        alive = sa.exists().where(jobs.c.project_id == project_id, LIVE)
        gone = sa.delete(caches).where(caches.c.project_id == project_id, caches.c.sha256.in_(theirs), ~alive)
        return frozenset(self._connection.scalars(gone.returning(caches.c.sha256)))

    # ---- bytes

    def take_blobs(
        self, project_id: str, *, sha256s: Collection[str] = (), keys: Collection[str] = (), asked_before_ms: int
    ) -> list[TakenBlob]:
        named = (blobs.c.project_id == project_id) & (blobs.c.sha256.in_(sha256s) | blobs.c.key.in_(keys))
        named &= blobs.c.created_at_ms <= asked_before_ms
        locked = sa.select(blobs.c.key).where(named, unreferenced()).order_by(blobs.c.sha256)
        found = list(self._connection.scalars(locked.with_for_update(of=blobs, skip_locked=True)))
        # Asked again, as the collector does: the rows are locked now.
        taken = sa.delete(blobs).where(blobs.c.key.in_(found), unreferenced())
        rows = self._connection.execute(taken.returning(blobs.c.key, blobs.c.size_bytes))
        return [TakenBlob(key=row.key, size_bytes=row.size_bytes) for row in rows]

    # ---- datasets

    def users_of_dataset(self, dataset_id: str, *, project_id: str, limit: int) -> list[str]:
        reads = sa.or_(*(jobs.c.spec[field].as_string() == dataset_id for field in DATASET_FIELDS))
        query = sa.select(jobs.c.id).where(jobs.c.project_id == project_id, LIVE, reads)
        return list(self._connection.scalars(query.order_by(jobs.c.id).limit(limit)))

    def drop_dataset(self, dataset_id: str, *, project_id: str) -> frozenset[str]:
        mine = (dataset_items.c.dataset_id == dataset_id) & (dataset_items.c.project_id == project_id)
        found = self._connection.scalars(sa.delete(dataset_items).where(mine).returning(dataset_items.c.sha256))
        sha256s = frozenset(found)
        this = (datasets.c.id == dataset_id) & (datasets.c.project_id == project_id)
        self._connection.execute(sa.delete(datasets).where(this))
        return sha256s

    # ---- projects

    def close_project(self, project_id: str, *, at_ms: int) -> bool:
        this = (projects.c.id == project_id) & projects.c.deleted_at_ms.is_(None)
        closed = sa.update(projects).where(this).values(deleted_at_ms=at_ms, retention={}, **NO_LIMITS)
        if self._connection.execute(closed).rowcount != 1:
            return False
        good = (keys.c.project_id == project_id) & keys.c.revoked_at_ms.is_(None)
        self._connection.execute(sa.update(keys).where(good).values(revoked_at_ms=at_ms))
        for table in OF_PEOPLE:
            self._connection.execute(sa.delete(table).where(table.c.project_id == project_id))
        return True

    def is_closed(self, project_id: str) -> bool:
        query = sa.select(projects.c.id).where(projects.c.id == project_id, projects.c.deleted_at_ms.is_not(None))
        return self._connection.scalar(query) is not None

    def live_jobs(self, project_id: str, *, limit: int, audits: bool = True) -> list[str]:
        which = sa.true() if audits else jobs.c.kind != AUDIT_KIND
        return self._ids(jobs, jobs.c.project_id == project_id, LIVE, which, limit=limit)

    def jobs_left(self, project_id: str, *, limit: int) -> list[str]:
        left = (~LIVE, jobs.c.deleted_at_ms.is_(None))
        return self._ids(jobs, jobs.c.project_id == project_id, *left, limit=limit)

    def datasets_left(self, project_id: str, *, limit: int) -> list[str]:
        return self._ids(datasets, datasets.c.project_id == project_id, limit=limit)

    def _ids(self, table: sa.Table, *conditions: sa.ColumnElement[bool], limit: int) -> list[str]:
        return list(
            self._connection.scalars(sa.select(table.c.id).where(*conditions).order_by(table.c.id).limit(limit))
        )

    def take_project_rows(self, project_id: str, *, limit: int) -> TakenRows:
        opened = take_uploads(self._connection, uploads.c.project_id == project_id, limit)
        count = sum(
            len(take_some(self._connection, table, table.c.project_id == project_id, limit))
            for table in (models, caches, idempotency, *OF_PEOPLE)
        )
        # Also those whose object storage has lost, which no listing of storage shows.
        mine = (blobs.c.project_id == project_id) & unreferenced()
        taken = take_some(self._connection, blobs, mine, limit, blobs.c.key, blobs.c.size_bytes)
        objects = {row.key: row.size_bytes for row in taken}
        return joined(opened, TakenRows(rows=count + len(objects), objects=objects))
