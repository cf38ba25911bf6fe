"""Queries for the registry of model files."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from giornata.control.ports import model_registry
from giornata.control.ports.model_registry import ModelRecord
from giornata.control.ports.node_queries.work_rows import BlobRow
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.store.database.rows import Queries, columns, insert_unless_there, record_of
from giornata.store.schema import blobs, job_inputs, models, nodes

COLUMNS = columns(models, ModelRecord)
_SHARED = models.c.shared & (models.c.project_id == ROOT_PROJECT)


class Models(Queries, model_registry.Models):
    def add(self, model: ModelRecord) -> bool:
        statement = insert_unless_there(self._dialect_name, models, **asdict(model))
        return self._connection.execute(statement).first() is not None

    def named(self, project_id: str, names: Sequence[str]) -> Mapping[str, ModelRecord]:
        return {each.name: each for each in self._seen(project_id, models.c.name.in_(names))}

    def of_bytes(self, project_id: str, sha256s: Sequence[str]) -> Mapping[str, ModelRecord]:
        return {each.sha256 or "": each for each in self._seen(project_id, models.c.sha256.in_(sha256s))}

    def page(self, project_id: str, *, before: tuple[int, str] | None, limit: int) -> list[ModelRecord]:
        query = sa.select(*COLUMNS).where((models.c.project_id == project_id) | _SHARED)
        if before is not None:
            query = query.where(sa.tuple_(models.c.created_at_ms, models.c.name) < before)
        query = query.order_by(models.c.created_at_ms.desc(), models.c.name.desc()).limit(limit)
        return [record_of(ModelRecord, row) for row in self._connection.execute(query)]

    def set_pinned(self, project_id: str, name: str, *, pinned: bool) -> ModelRecord | None:
        changed = sa.update(models).where(_this(project_id, name)).values(pinned=pinned).returning(*COLUMNS)
        return self._one(changed)

    def drop(self, project_id: str, name: str) -> ModelRecord | None:
        return self._one(sa.delete(models).where(_this(project_id, name)).returning(*COLUMNS))

    def use(self, models: Sequence[ModelRecord], *, at_ms: int) -> None:
        for each in sorted(models, key=lambda each: (each.project_id, each.name)):
            self._connection.execute(_USE, {"project": each.project_id, "wanted": each.name, "at": at_ms})

    def largest_store_bytes(self, project_id: str, *, seen_since_ms: int) -> int | None:
        told = nodes.c.checks["figures", "model_store_bytes"].as_float()
        here = (nodes.c.last_seen_at_ms >= seen_since_ms) & nodes.c.project_id.in_([project_id, ROOT_PROJECT])
        count, known, most = self._connection.execute(
            sa.select(sa.func.count(), sa.func.count(told), sa.func.max(told)).where(here)
        ).one()
        return int(most) if count and count == known else None

    def shared_blobs(self, sha256s: Sequence[str]) -> Mapping[str, BlobRow]:
        same = (blobs.c.project_id == models.c.project_id) & (blobs.c.sha256 == models.c.sha256)
        query = (
            sa.select(blobs.c.sha256, blobs.c.size_bytes, blobs.c.key)
            .join(models, same)
            .where(_SHARED, models.c.sha256.in_(sha256s), blobs.c.lost_at_ms.is_(None))
        )
        return {row.sha256: record_of(BlobRow, row) for row in self._connection.execute(query)}

    def held_blobs(self, order_ids: Sequence[str], sha256s: Sequence[str]) -> Mapping[str, BlobRow]:
        same = (blobs.c.project_id == job_inputs.c.project_id) & (blobs.c.sha256 == job_inputs.c.sha256)
        query = (
            sa.select(blobs.c.sha256, blobs.c.size_bytes, blobs.c.key)
            .join(job_inputs, same)
            .where(job_inputs.c.job_id.in_(order_ids), job_inputs.c.sha256.in_(sha256s), blobs.c.lost_at_ms.is_(None))
        )
        return {row.sha256: record_of(BlobRow, row) for row in self._connection.execute(query)}

    def _seen(self, project_id: str, wanted: sa.ColumnElement[bool]) -> list[ModelRecord]:
        """Return what the project sees, shared models first, so that its own take their place in a dictionary."""
        query = sa.select(*COLUMNS).where(wanted, (models.c.project_id == project_id) | _SHARED)
        query = query.order_by(models.c.project_id == project_id)
        return [record_of(ModelRecord, row) for row in self._connection.execute(query)]

    def _one(self, statement: Any) -> ModelRecord | None:
        row = self._connection.execute(statement).first()
        return None if row is None else record_of(ModelRecord, row)


def _this(project_id: str, name: str) -> sa.ColumnElement[bool]:
    return (models.c.project_id == project_id) & (models.c.name == name)


_USE = (
    sa.update(models)
    .where(models.c.project_id == sa.bindparam("project"), models.c.name == sa.bindparam("wanted"))
    .values(used_at_ms=sa.bindparam("at", type_=sa.BigInteger()))
)
