"""Queries for the installation's row, projects, their keys and their sealed secrets."""

from collections.abc import Sequence

import sqlalchemy as sa

from giornata.control.ports.user_queries import user_store
from giornata.control.ports.user_queries.records import KeyRecord, ProjectRecord
from giornata.control.ports.user_queries.user_store import Before, KeptSigningKey, SecretRecord
from giornata.domain.generation.picture import SafetyPolicy
from giornata.protocol.project.admin import Scope
from giornata.store.database.rows import Queries, among, columns, insert_unless_there, record_of
from giornata.store.schema import installation, keys, project_secrets, projects

COLUMNS = columns(projects, ProjectRecord)
THE_ROW = 1
_IS_OPEN = projects.c.deleted_at_ms.is_(None)
_GET = sa.select(*COLUMNS).where(projects.c.id == sa.bindparam("wanted"), _IS_OPEN)
KEY_COLUMNS = columns(keys, KeyRecord)
SECRET_COLUMNS = columns(project_secrets, SecretRecord)


class Projects(Queries, user_store.Projects):
    def install(self, *, signing_key: str, sealed_signing_key: str | None = None, at_ms: int) -> bool:
        keys = {"signing_key": signing_key, "sealed_signing_key": sealed_signing_key}
        row = {"id": THE_ROW, "created_at_ms": at_ms} | keys
        statement = insert_unless_there(self._dialect_name, installation, **row)
        return self._connection.execute(statement).first() is not None

    def signing_key(self) -> KeptSigningKey | None:
        columns = (installation.c.signing_key, installation.c.sealed_signing_key)
        row = self._connection.execute(sa.select(*columns).where(installation.c.id == THE_ROW)).first()
        return None if row is None else KeptSigningKey(clear=row[0], sealed=row[1])

    def replace_signing_key(self, *, signing_key: str, sealed_signing_key: str | None) -> None:
        if self._dialect_name == "sqlite":
            # Or the old bytes would stay in the file. The connection keeps this until the server ends.
            self._connection.exec_driver_sql("PRAGMA secure_delete = ON")
        values = {"signing_key": signing_key, "sealed_signing_key": sealed_signing_key}
        self._connection.execute(sa.update(installation).where(installation.c.id == THE_ROW).values(values))

    def add(self, project: ProjectRecord) -> bool:
        row = {name: getattr(project, name) for name in ("id", "name", "created_at_ms", "created_by")}
        return self._connection.execute(insert_unless_there(self._dialect_name, projects, **row)).first() is not None

    def get(self, project_id: str) -> ProjectRecord | None:
        row = self._connection.execute(_GET, {"wanted": project_id}).first()
        return None if row is None else record_of(ProjectRecord, row)

    def there(self, project_ids: Sequence[str]) -> frozenset[str]:
        query = sa.select(projects.c.id).where(among(self._dialect_name, projects.c.id, "wanted"), _IS_OPEN)
        return frozenset(self._connection.scalars(query, {"wanted": list(project_ids)}))

    def page(self, *, only: str | None, before: Before, limit: int) -> list[ProjectRecord]:
        place = sa.tuple_(projects.c.created_at_ms, projects.c.id)
        query = sa.select(*COLUMNS).where(_IS_OPEN)
        query = query.order_by(projects.c.created_at_ms.desc(), projects.c.id.desc()).limit(limit)
        if only is not None:
            query = query.where(projects.c.id == only)
        if before is not None:
            query = query.where(place < before)
        return [record_of(ProjectRecord, row) for row in self._connection.execute(query)]

    def set_max_pictures(self, project_id: str, max_pictures: int | None) -> bool:
        return self._set(project_id, max_pictures=max_pictures)

    def set_safety(self, project_id: str, safety: SafetyPolicy) -> bool:
        return self._set(project_id, safety=safety)

    def _set(self, project_id: str, **values: object) -> bool:
        statement = sa.update(projects).where(projects.c.id == project_id, _IS_OPEN).values(values)
        return self._connection.execute(statement).rowcount == 1


class Keys(Queries, user_store.Keys):
    def add(self, key: KeyRecord) -> None:
        row = {column.name: getattr(key, column.name) for column in KEY_COLUMNS}
        self._connection.execute(sa.insert(keys).values(**row))

    def by_secret(self, secret_sha256: str) -> KeyRecord | None:
        known = (keys.c.secret_sha256 == secret_sha256) | (keys.c.previous_sha256 == secret_sha256)
        return self._one(sa.select(*KEY_COLUMNS).where(known))

    def get(self, key_id: str, *, project_id: str | None) -> KeyRecord | None:
        query = sa.select(*KEY_COLUMNS).where(keys.c.id == key_id)
        return self._one(query if project_id is None else query.where(keys.c.project_id == project_id))

    def page(
        self, *, project_id: str | None, user_id: str | None = None, before: Before, limit: int
    ) -> list[KeyRecord]:
        query = sa.select(*KEY_COLUMNS).order_by(keys.c.created_at_ms.desc(), keys.c.id.desc()).limit(limit)
        if project_id is not None:
            query = query.where(keys.c.project_id == project_id)
        if user_id is not None:
            query = query.where(keys.c.user_id == user_id)
        if before is not None:
            query = query.where(sa.tuple_(keys.c.created_at_ms, keys.c.id) < before)
        return [record_of(KeyRecord, row) for row in self._connection.execute(query)]

    def lock_admins(self, project_id: str) -> list[str]:
        query = (
            sa.select(keys.c.id)
            .where(keys.c.project_id == project_id, keys.c.scope == Scope.ADMIN, keys.c.revoked_at_ms.is_(None))
            .where(keys.c.user_id.is_(None), keys.c.expires_at_ms.is_(None))
            .order_by(keys.c.id)  # everybody locks in one order
            .with_for_update()
        )
        return list(self._connection.scalars(query))

    def revoke(self, key_id: str, *, at_ms: int) -> None:
        still_good = (keys.c.id == key_id) & keys.c.revoked_at_ms.is_(None)
        self._connection.execute(sa.update(keys).where(still_good).values(revoked_at_ms=at_ms))

    def revoke_of(self, user_id: str, *, project_id: str | None, at_ms: int) -> int:
        of_it = (keys.c.user_id == user_id) & keys.c.revoked_at_ms.is_(None)
        of_it = of_it if project_id is None else of_it & (keys.c.project_id == project_id)
        return self._connection.execute(sa.update(keys).where(of_it).values(revoked_at_ms=at_ms)).rowcount

    def rotate(self, key: KeyRecord) -> bool:
        names = ("prefix", "secret_sha256", "previous_sha256", "previous_until_ms")
        still_good = (keys.c.id == key.id) & keys.c.revoked_at_ms.is_(None)
        values = {name: getattr(key, name) for name in names}
        return self._connection.execute(sa.update(keys).where(still_good).values(values)).rowcount == 1

    def used(self, key_id: str, *, at_ms: int, unless_since_ms: int) -> None:
        stale = keys.c.last_used_at_ms.is_(None) | (keys.c.last_used_at_ms < unless_since_ms)
        self._connection.execute(sa.update(keys).where(keys.c.id == key_id, stale).values(last_used_at_ms=at_ms))

    def _one(self, query: sa.Select[tuple[object, ...]]) -> KeyRecord | None:
        row = self._connection.execute(query).first()
        return None if row is None else record_of(KeyRecord, row)


class Secrets(Queries, user_store.Secrets):
    def put(self, secret: SecretRecord) -> None:
        row = {column.name: getattr(secret, column.name) for column in SECRET_COLUMNS}
        if self._connection.execute(insert_unless_there(self._dialect_name, project_secrets, **row)).first():
            return
        changed = {name: getattr(secret, name) for name in ("sealed", "changed_at_ms", "created_by")}
        self._connection.execute(
            sa.update(project_secrets).where(_this(secret.project_id, secret.name)).values(changed)
        )

    def get(self, project_id: str, name: str) -> SecretRecord | None:
        row = self._connection.execute(sa.select(*SECRET_COLUMNS).where(_this(project_id, name))).first()
        return None if row is None else record_of(SecretRecord, row)

    def of_project(self, project_id: str) -> list[SecretRecord]:
        query = (
            sa.select(*SECRET_COLUMNS)
            .where(project_secrets.c.project_id == project_id)
            .order_by(project_secrets.c.name)
        )
        return [record_of(SecretRecord, row) for row in self._connection.execute(query)]

    def drop(self, project_id: str, name: str) -> bool:
        return self._connection.execute(sa.delete(project_secrets).where(_this(project_id, name))).rowcount == 1


def _this(project_id: str, name: str) -> sa.ColumnElement[bool]:
    return sa.and_(project_secrets.c.project_id == project_id, project_secrets.c.name == name)
