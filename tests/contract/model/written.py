"""Which tables were written to, so that a look need not read the others again."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

# FOR UPDATE only locks.
_WRITES = re.compile(r'\b(?:INSERT\s+INTO|DELETE\s+FROM|(?<!FOR )UPDATE)\s+"?(\w+)', re.IGNORECASE)
_READS = re.compile(r"\s*(?:SELECT|BEGIN|PRAGMA|SAVEPOINT|RELEASE|COMMIT|ROLLBACK|SET|SHOW)\b", re.IGNORECASE)


class WrittenTables:
    """Names of tables that any statement on any database has written to, or tried to, since they were forgotten.

    The schema has no cascades and no triggers: what a statement does not name, it does not change.
    """

    def __init__(self, every_table: frozenset[str]) -> None:
        self._every = every_table
        self.tables = set(every_table)

    def forget(self) -> None:
        """From here on."""
        self.tables.clear()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """As long as this lasts."""
        sa.event.listen(Engine, "before_cursor_execute", self._note)
        try:
            yield
        finally:
            sa.event.remove(Engine, "before_cursor_execute", self._note)

    def _note(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        named = tables_written(statement)
        self.tables.update(self._every if named is None else named)  # in one go: threads come here


@cache
def tables_written(statement: str) -> frozenset[str] | None:
    """By a statement of SQL; None when that cannot be seen."""
    found = frozenset(name.lower() for name in _WRITES.findall(statement))
    return found or (frozenset() if _READS.match(statement) else None)
