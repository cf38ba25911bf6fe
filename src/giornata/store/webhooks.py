"""Queries for the webhooks of projects."""

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import webhook_store
from giornata.control.ports.user_queries.user_store import Before
from giornata.control.ports.user_queries.webhook_store import WebhookRecord
from giornata.protocol.project.webhook_endpoints import WebhookFormat
from giornata.store.database.rows import Queries, columns
from giornata.store.schema import webhooks

COLUMNS = columns(webhooks, WebhookRecord)
OF_PROJECT = webhooks.c.user_id.is_(None)


class Webhooks(Queries, webhook_store.Webhooks):
    def add(self, webhook: WebhookRecord) -> None:
        row = {column.name: getattr(webhook, column.name) for column in COLUMNS}
        self._connection.execute(sa.insert(webhooks).values({**row, "events": list(webhook.events)}))

    def get(self, webhook_id: str, *, project_id: str) -> WebhookRecord | None:
        found = self._records(sa.select(*COLUMNS).where(_this(webhook_id, project_id)))
        return found[0] if found else None

    def page(self, project_id: str, *, before: Before, limit: int) -> list[WebhookRecord]:
        query = sa.select(*COLUMNS).where(webhooks.c.project_id == project_id, OF_PROJECT)
        if before is not None:
            query = query.where(sa.tuple_(webhooks.c.created_at_ms, webhooks.c.id) < before)
        query = query.order_by(webhooks.c.created_at_ms.desc(), webhooks.c.id.desc()).limit(limit)
        return self._records(query)

    def count(self, project_id: str) -> int:
        own = (webhooks.c.project_id == project_id) & OF_PROJECT
        found = sa.select(sa.func.count()).select_from(webhooks).where(own)
        return self._connection.scalar(found) or 0

    def enabled(self, *, project_id: str | None = None) -> list[WebhookRecord]:
        query = sa.select(*COLUMNS).where(webhooks.c.enabled)
        return self._records(query if project_id is None else query.where(webhooks.c.project_id == project_id))

    def of_ids(self, webhook_ids: Collection[str]) -> Mapping[str, WebhookRecord]:
        query = sa.select(*COLUMNS).where(webhooks.c.id.in_(sorted(webhook_ids)))
        return {each.id: each for each in self._records(query)}

    def update(self, webhook_id: str, **columns: Any) -> None:
        self._connection.execute(sa.update(webhooks).where(webhooks.c.id == webhook_id).values(**columns))

    def drop(self, webhook_id: str, *, project_id: str) -> bool:
        return self._connection.execute(sa.delete(webhooks).where(_this(webhook_id, project_id))).rowcount == 1

    def of_person(self, user_id: str, *, project_id: str) -> WebhookRecord | None:
        own = (webhooks.c.user_id == user_id) & (webhooks.c.project_id == project_id)
        found = self._records(sa.select(*COLUMNS).where(own))
        return found[0] if found else None

    def drop_of_person(self, user_id: str, *, project_id: str | None) -> None:
        gone = sa.delete(webhooks).where(webhooks.c.user_id == user_id)
        self._connection.execute(gone if project_id is None else gone.where(webhooks.c.project_id == project_id))

    def _records(self, query: sa.Select[Any]) -> list[WebhookRecord]:
        rows = self._connection.execute(query).mappings()
        return [WebhookRecord(**{**row, "format": WebhookFormat(row["format"])}) for row in rows]


def _this(webhook_id: str, project_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(webhooks.c.id == webhook_id, webhooks.c.project_id == project_id, OF_PROJECT)
