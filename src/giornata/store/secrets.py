"""Projects' secrets, sealed."""

import sqlalchemy as sa

from giornata.control.ports.secret_store import SecretRecord
from giornata.store.record_columns import columns, record_of
from giornata.store.schema import project_secrets
from giornata.store.upsert import insert_unless_there

COLUMNS = columns(project_secrets, SecretRecord)


class SecretQueries:
    """Implements `giornata.control.ports.secret_store.Secrets`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection, self._dialect_name = connection, dialect_name

    def put(self, secret: SecretRecord) -> None:
        row = {column.name: getattr(secret, column.name) for column in COLUMNS}
        if self._connection.execute(insert_unless_there(self._dialect_name, project_secrets, **row)).first():
            return
        changed = {"sealed": secret.sealed, "changed_at_ms": secret.changed_at_ms}
        self._connection.execute(
            sa.update(project_secrets).where(_this(secret.project_id, secret.name)).values(changed)
        )

    def get(self, project_id: str, name: str) -> SecretRecord | None:
        row = self._connection.execute(sa.select(*COLUMNS).where(_this(project_id, name))).first()
        return None if row is None else record_of(SecretRecord, row)

    def of_project(self, project_id: str) -> list[SecretRecord]:
        query = sa.select(*COLUMNS).where(project_secrets.c.project_id == project_id).order_by(project_secrets.c.name)
        return [record_of(SecretRecord, row) for row in self._connection.execute(query)]

    def drop(self, project_id: str, name: str) -> bool:
        return self._connection.execute(sa.delete(project_secrets).where(_this(project_id, name))).rowcount == 1


def _this(project_id: str, name: str) -> sa.ColumnElement[bool]:
    return sa.and_(project_secrets.c.project_id == project_id, project_secrets.c.name == name)
