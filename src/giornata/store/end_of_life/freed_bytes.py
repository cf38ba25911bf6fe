"""Statements that tell the bytes that would go with rows: of objects that nothing else refers to, and of texts."""

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from giornata.store.garbage import REFERRERS
from giornata.store.schema import blobs, pictures

Condition = sa.ColumnElement[bool]


class Utf8Bytes(FunctionElement[int]):
    """The number of bytes of a column's text in UTF-8."""

    type = sa.BigInteger()
    name = "utf8_bytes"
    inherit_cache = True


@compiles(Utf8Bytes, "sqlite")
def _on_sqlite(element: Utf8Bytes, compiler: SQLCompiler, **how: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **how)} AS BLOB))"


@compiles(Utf8Bytes, "postgresql")
def _on_postgresql(element: Utf8Bytes, compiler: SQLCompiler, **how: Any) -> str:
    return f"octet_length(CAST({compiler.process(element.clauses, **how)} AS TEXT))"


def blobs_of(
    project: sa.BindParameter[str], named: Iterable[sa.Select[Any]], going: Mapping[sa.Table, Condition]
) -> sa.Select[Any]:
    """Return the statement of the bytes of blobs that storage would lose.

    `named` select the hashes that rows which go name. `going` says for each table which of its rows go: those, and
    no row of another table, may refer to a blob that goes.
    """

    def stays(table: sa.Table) -> Condition:
        same = (table.c.project_id == blobs.c.project_id) & (table.c.sha256 == blobs.c.sha256)
        kept = ~going[table] if table in going else sa.true()
        return sa.exists(sa.select(sa.literal(1)).select_from(table).where(same, kept).correlate(blobs))

    mine = (blobs.c.project_id == project) & blobs.c.lost_at_ms.is_(None)
    of_rows = blobs.c.sha256.in_(sa.union_all(*named))
    return sa.select(sa.func.sum(blobs.c.size_bytes)).where(mine, of_rows, *(~stays(each) for each in REFERRERS))


def objects_of_pictures(going: Condition) -> sa.Select[Any]:
    """Return the statement of the bytes of pictures that go. Equal pictures of one lease are one object, which stays
    as long as one of them does.
    """
    distinct = (
        sa.select(pictures.c.lease, pictures.c.sha256, pictures.c.size_bytes).where(going).distinct().subquery()
    )
    same = (pictures.c.lease == distinct.c.lease) & (pictures.c.sha256 == distinct.c.sha256)
    stays = sa.exists(sa.select(sa.literal(1)).select_from(pictures).where(same, ~going).correlate(distinct))
    return sa.select(sa.func.sum(distinct.c.size_bytes)).where(~stays)
