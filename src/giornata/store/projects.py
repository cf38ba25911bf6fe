"""The installation's row and its tenants."""

import sqlalchemy as sa

from giornata.control.ports.records import ProjectRecord
from giornata.control.ports.user_store import Before, KeptSigningKey
from giornata.store.record_columns import columns, record_of
from giornata.store.schema import installation, projects
from giornata.store.upsert import insert_unless_there

COLUMNS = columns(projects, ProjectRecord)
THE_ROW = 1
_GET = sa.select(*COLUMNS).where(projects.c.id == sa.bindparam("wanted"))


class ProjectQueries:
    """Implements `giornata.control.ports.user_store.Projects`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection, self._dialect_name = connection, dialect_name

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
        row = {"id": project.id, "name": project.name, "created_at_ms": project.created_at_ms}
        return self._connection.execute(insert_unless_there(self._dialect_name, projects, **row)).first() is not None

    def get(self, project_id: str) -> ProjectRecord | None:
        row = self._connection.execute(_GET, {"wanted": project_id}).first()
        return None if row is None else record_of(ProjectRecord, row)

    def page(self, *, only: str | None, before: Before, limit: int) -> list[ProjectRecord]:
        place = sa.tuple_(projects.c.created_at_ms, projects.c.id)
        query = sa.select(*COLUMNS).order_by(projects.c.created_at_ms.desc(), projects.c.id.desc()).limit(limit)
        if only is not None:
            query = query.where(projects.c.id == only)
        if before is not None:
            query = query.where(place < before)
        return [record_of(ProjectRecord, row) for row in self._connection.execute(query)]

    def set_max_pictures(self, project_id: str, max_pictures: int | None) -> bool:
        statement = sa.update(projects).where(projects.c.id == project_id).values(max_pictures=max_pictures)
        return self._connection.execute(statement).rowcount == 1
