"""Find and delete rows that nothing refers to."""

from collections.abc import Sequence

import sqlalchemy as sa

from giornata.control.ports.user_queries import user_store
from giornata.control.ports.user_queries.records import MODEL_ROLE, UploadRecord
from giornata.domain.generation.picture import PictureState, parts_of_key
from giornata.domain.jobs.job import TERMINAL
from giornata.protocol.specs import AUDIT_KIND, CHECKPOINT_ROLE, VALIDATE_KIND
from giornata.store.database.rows import Queries, columns, record_of
from giornata.store.schema import (
    artifacts,
    audits,
    blobs,
    caches,
    checkpoints,
    dataset_items,
    idempotency,
    job_inputs,
    jobs,
    models,
    pictures,
    uploads,
)

UPLOAD_COLUMNS = columns(uploads, UploadRecord)
REFERRERS = (dataset_items, job_inputs, checkpoints, artifacts, caches, models, audits)


class Garbage(Queries, user_store.Garbage):
    def take_uploads(self, *, created_before_ms: int, limit: int) -> list[UploadRecord]:
        old = (
            sa.select(uploads.c.id)
            .where(uploads.c.created_at_ms < created_before_ms)
            .order_by(uploads.c.created_at_ms)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        ids = list(self._connection.scalars(old))
        taken = sa.delete(uploads).where(uploads.c.id.in_(ids)).returning(*UPLOAD_COLUMNS)
        return [record_of(UploadRecord, row) for row in self._connection.execute(taken)]

    def take_blobs(self, *, created_before_ms: int, limit: int) -> list[str]:
        candidates = (
            sa.select(blobs.c.key)
            .where(blobs.c.created_at_ms < created_before_ms, unreferenced())
            .order_by(blobs.c.created_at_ms)
            .limit(limit)
            .with_for_update(of=blobs, skip_locked=True)
        )
        keys = list(self._connection.scalars(candidates))
        # Asked again, in a statement of its own: the rows are locked now, so a reference that was written before
        # the lock is seen here, and a later one fails on its foreign key.
        taken = sa.delete(blobs).where(blobs.c.key.in_(keys), unreferenced()).returning(blobs.c.key)
        return list(self._connection.scalars(taken))

    def unknown(self, keys: Sequence[str]) -> set[str]:
        # One statement, one snapshot: an upload that becomes a blob is seen as one or the other.
        known = sa.union_all(
            sa.select(blobs.c.key).where(blobs.c.key.in_(keys)),
            sa.select(uploads.c.key).where(uploads.c.key.in_(keys), uploads.c.completed_at_ms.is_(None)),
        )
        return set(keys) - set(self._connection.scalars(known)) - self._of_results(keys)

    def _of_results(self, keys: Sequence[str]) -> set[str]:
        """Return those of the keys whose bytes are results of pictures. No row names them; lease and hash do."""
        parts = {parsed: key for key in keys if (parsed := parts_of_key(key)) is not None}
        if not parts:
            return set()
        columns_ = (pictures.c.project_id, pictures.c.lease, pictures.c.sha256)
        leases = sorted({lease for _, lease, _ in parts})
        found = sa.select(*columns_).where(
            pictures.c.lease.in_(leases), pictures.c.state == PictureState.SUCCEEDED, pictures.c.sha256.is_not(None)
        )
        return {parts[key] for row in self._connection.execute(found) if (key := tuple(row)) in parts}

    def forget_order_models(self, *, limit: int) -> int:
        of_ended = (
            sa.select(job_inputs.c.job_id, job_inputs.c.role)
            .join(jobs, jobs.c.id == job_inputs.c.job_id)
            .where(job_inputs.c.role.startswith(MODEL_ROLE), jobs.c.state.in_(TERMINAL))
            .limit(limit)
        )
        these = sa.tuple_(job_inputs.c.job_id, job_inputs.c.role).in_(of_ended)
        return self._connection.execute(sa.delete(job_inputs).where(these)).rowcount

    def forget_models(self, *, used_before_ms: int, limit: int) -> int:
        names = list(models.primary_key.columns)
        old = (
            sa.select(*names)
            .where(models.c.used_at_ms < used_before_ms, models.c.name == models.c.reference, ~models.c.pinned)
            .limit(limit)
        )
        return self._connection.execute(sa.delete(models).where(sa.tuple_(*names).in_(old))).rowcount

    def forget_checkpoints(self, *, limit: int) -> int:
        reads = jobs.c.kind.in_((AUDIT_KIND, VALIDATE_KIND))
        ended = sa.select(jobs.c.id).where(reads, jobs.c.state.in_(sorted(TERMINAL)))
        read = (job_inputs.c.role == CHECKPOINT_ROLE) & job_inputs.c.job_id.in_(ended)
        some = sa.select(job_inputs.c.job_id).where(read).limit(limit)
        done = (job_inputs.c.role == CHECKPOINT_ROLE) & job_inputs.c.job_id.in_(some)
        return self._connection.execute(sa.delete(job_inputs).where(done)).rowcount

    def forget_requests(self, *, created_before_ms: int, limit: int) -> int:
        columns_ = list(idempotency.primary_key.columns)
        old = (
            sa.select(*columns_)
            .where(idempotency.c.created_at_ms < created_before_ms)
            .order_by(idempotency.c.created_at_ms)
            .limit(limit)
        )
        return self._connection.execute(sa.delete(idempotency).where(sa.tuple_(*columns_).in_(old))).rowcount


def unreferenced() -> sa.ColumnElement[bool]:
    """Return the condition of a blob that no row refers to."""

    def referred(table: sa.Table) -> sa.Exists:
        same = (table.c.project_id == blobs.c.project_id) & (table.c.sha256 == blobs.c.sha256)
        return sa.exists(sa.select(sa.literal(1)).select_from(table).where(same).correlate(blobs))

    return sa.and_(*(~referred(table) for table in REFERRERS))
