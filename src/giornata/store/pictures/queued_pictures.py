"""The condition that a picture is queued, in the words of the partial indexes of the database that is asked; and that
it waits for an annotation."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from giornata.protocol.generation.awaited_annotations import MODEL_BASES
from giornata.store.schema.pictures import QUEUED_PICTURE, pictures

AWAITS_ANNOTATION: sa.ColumnElement[bool] = sa.and_(
    pictures.c.base_key.in_([sa.literal_column(f"'{key}'") for key in sorted(MODEL_BASES)]),
    pictures.c.batch_key != pictures.c.base_key,
)
"""In the words of `giornata.protocol.generation.awaited_annotations.awaits_annotation`."""


class IsQueued(sa.ColumnElement[bool]):
    """True for a picture that is queued. A planner finds no partial index by a parameter, or by other words."""

    # It has no parts. Without this list SQLAlchemy compiles every statement with the condition each time it runs.
    _traverse_internals: list[Any] = []  # noqa: RUF012 - SQLAlchemy declares it so
    inherit_cache = True
    type = sa.Boolean()

    def self_group(self, against: Any = None) -> "IsQueued":  # noqa: ARG002
        """Return the condition as it is: SQLAlchemy would compare it with 1 for SQLite."""
        return self


@compiles(IsQueued)
def _compiled(_: IsQueued, compiler: Any, **__: Any) -> str:
    return f"pictures.{QUEUED_PICTURE[compiler.dialect.name]}"
