"""Between rows and the records of `giornata.control.ports.records`: a field is the column of its name."""

from dataclasses import fields
from typing import Any, TypeVar

import sqlalchemy as sa

_R = TypeVar("_R")


def columns(table: sa.Table, record: type[Any], *, but: frozenset[str] = frozenset()) -> list[sa.Column[Any]]:
    """The table's columns that the record has fields for, without those named in `but`."""
    return [table.c[field.name] for field in fields(record) if field.name not in but]


def record_of(record: type[_R], row: Any) -> _R:
    """The record of a row whose columns have the names of its fields."""
    return record(**row._mapping)
