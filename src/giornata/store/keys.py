"""Keys, by the hash of their secret."""

import sqlalchemy as sa

from giornata.control.ports.records import KeyRecord
from giornata.control.ports.user_store import Before
from giornata.protocol.admin import Scope
from giornata.store.record_columns import columns, record_of
from giornata.store.schema import keys

COLUMNS = columns(keys, KeyRecord)


class KeyQueries:
    """Implements `giornata.control.ports.user_store.Keys`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection, self._dialect_name = connection, dialect_name

    def add(self, key: KeyRecord) -> None:
        row = {column.name: getattr(key, column.name) for column in COLUMNS}
        self._connection.execute(sa.insert(keys).values(**row))

    def by_secret(self, secret_sha256: str) -> KeyRecord | None:
        return self._one(sa.select(*COLUMNS).where(keys.c.secret_sha256 == secret_sha256))

    def get(self, key_id: str, *, project_id: str | None) -> KeyRecord | None:
        query = sa.select(*COLUMNS).where(keys.c.id == key_id)
        return self._one(query if project_id is None else query.where(keys.c.project_id == project_id))

    def page(self, *, project_id: str | None, before: Before, limit: int) -> list[KeyRecord]:
        query = sa.select(*COLUMNS).order_by(keys.c.created_at_ms.desc(), keys.c.id.desc()).limit(limit)
        if project_id is not None:
            query = query.where(keys.c.project_id == project_id)
        if before is not None:
            query = query.where(sa.tuple_(keys.c.created_at_ms, keys.c.id) < before)
        return [record_of(KeyRecord, row) for row in self._connection.execute(query)]

    def lock_admins(self, project_id: str) -> list[str]:
        query = (
            sa.select(keys.c.id)
            .where(keys.c.project_id == project_id, keys.c.scope == Scope.ADMIN, keys.c.revoked_at_ms.is_(None))
            .order_by(keys.c.id)  # everybody locks in one order
            .with_for_update()
        )
        return list(self._connection.scalars(query))

    def revoke(self, key_id: str, *, at_ms: int) -> None:
        still_good = (keys.c.id == key_id) & keys.c.revoked_at_ms.is_(None)
        self._connection.execute(sa.update(keys).where(still_good).values(revoked_at_ms=at_ms))

    def used(self, key_id: str, *, at_ms: int, unless_since_ms: int) -> None:
        stale = keys.c.last_used_at_ms.is_(None) | (keys.c.last_used_at_ms < unless_since_ms)
        self._connection.execute(sa.update(keys).where(keys.c.id == key_id, stale).values(last_used_at_ms=at_ms))

    def _one(self, query: sa.Select[tuple[object, ...]]) -> KeyRecord | None:
        row = self._connection.execute(query).first()
        return None if row is None else record_of(KeyRecord, row)
