"""Compare tables of two databases by their numbers of rows and by hashes of all rows."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from giornata.domain.errors import Fault
from giornata.store.transfer.copy_tables import TABLES, plain

FETCHED_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDigest:
    """The content of a table. `sha256_sum` is the sum of the hashes of its rows, in any order, modulo 2^256."""

    rows: int
    sha256_sum: int


def differences(source: sa.Connection, target: sa.Connection) -> Iterator[Fault]:
    """Yield a fault for each table whose rows are not the same on both sides."""
    for table in TABLES:
        expected, found = digest_of(source, table), digest_of(target, table)
        if found != expected:
            message = f"has {found.rows} rows in the target and {expected.rows} in the source, or other values"
            hint = "empty the target and begin anew"
            yield Fault(where=f"table {table.name}", message=message, hint=hint)


def digest_of(connection: sa.Connection, table: sa.Table) -> TableDigest:
    """Return the digest of a table, equal on both dialects for equal rows."""
    rows, total = 0, 0
    streaming = connection.execution_options(yield_per=FETCHED_ROWS)
    json_places = frozenset(place for place, each in enumerate(table.columns) if isinstance(each.type, sa.JSON))
    for row in streaming.execute(sa.select(*map(plain, table.columns))):
        values = [_parsed(value) if place in json_places else value for place, value in enumerate(row)]
        line = json.dumps(values, sort_keys=True).encode()
        rows, total = rows + 1, (total + int.from_bytes(hashlib.sha256(line).digest())) % 2**256
    return TableDigest(rows=rows, sha256_sum=total)


def _parsed(text: str | None) -> Any:
    """Return the value of JSON in a list, and nothing for NULL, which is not the JSON null."""
    return None if text is None else [json.loads(text)]
