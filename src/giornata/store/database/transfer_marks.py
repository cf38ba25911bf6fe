"""The table `store_transfer`, which a move to another database keeps on both sides until its end.

No server starts on a database that has the table: the source would get rows that the target lacks, and the target has
a part of the rows only. The source keeps the table after the move.
"""

from collections.abc import Mapping
from enum import StrEnum

import sqlalchemy as sa

from giornata.domain.errors import Fault, InvalidInput

marks = sa.Table(
    "store_transfer",
    sa.MetaData(),
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("said", sa.Text, nullable=False),
)
SOURCE, STATE, TARGET = "source", "state", "target"
"""`source` stands in the target: which installation fills it. The others stand in the source."""


class TransferState(StrEnum):
    """The state of a move, as its source says."""

    MOVING = "moving"
    MOVED = "moved"


def read_marks(connection: sa.Connection) -> Mapping[str, str] | None:
    """Return the marks by name; None for a database that no move concerns."""
    if not sa.inspect(connection).has_table(marks.name):
        return None
    return {row.name: row.said for row in connection.execute(sa.select(marks))}


def refuse_marked(connection: sa.Connection) -> None:
    """Raises InvalidInput for the source of a move, and for a target whose move has not ended."""
    found = read_marks(connection)
    if found is None:
        return
    message, hint = _words(found)
    raise InvalidInput([Fault(where="database", message=message, hint=hint)])


def _words(found: Mapping[str, str]) -> tuple[str, str]:
    target = found.get(TARGET, "PostgreSQL")
    if found.get(STATE) == TransferState.MOVED:
        message = f"this installation was moved to {target}"
        return message, "name that database in --database; giornata migrate-store --abandon makes this one good again"
    if found.get(STATE) == TransferState.MOVING:
        message = f"this installation is being moved to {target}"
        return message, "repeat giornata migrate-store, or give the move up with --abandon"
    return "giornata migrate-store has not filled it to the end", "repeat that command"
