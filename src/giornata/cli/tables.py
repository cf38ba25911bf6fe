"""Tables that fit the terminal: whole words and whole ids, or they are left out and that is said."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 3
"""Spaces between two columns where there is room; two where there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What a table's columns are like, by their places.

    `right` are right-aligned; `prose` may go over several lines; `spare` are left out where the terminal is too
    narrow, the first one named first.
    """

    headers: tuple[str, ...]
    right: frozenset[int]
    prose: frozenset[int]
    spare: tuple[int, ...]


def print_table(console: Console, columns: Columns, rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Print it, and return the headers of the columns that were left out.

    Where not even the rest fits, lines run over: half an id is worth nothing.
    """
    left_out: set[int] = set()
    for index in columns.spare:
        if _least_width(columns, rows, left_out) <= console.width:
            break
        left_out.add(index)
    kept = [index for index in range(len(columns.headers)) if index not in left_out]
    widths = [_width(columns, rows, index) for index in kept]
    wide = sum(widths) + GAP * (len(kept) - 1) <= console.width
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP if wide else 2, 0, 0))
    for index, width in zip(kept, widths, strict=True):
        table.add_column(
            columns.headers[index],
            justify="right" if index in columns.right else "left",
            no_wrap=index not in columns.prose,
            min_width=_least(columns, rows, index) if index in columns.prose else width,
        )
    for row in rows:
        # As text: a name in square brackets is a name, and no markup.
        table.add_row(*(Text(row[index]) for index in kept))
    console.print(table, width=max(console.width, _least_width(columns, rows, left_out)), crop=False, soft_wrap=False)
    return tuple(columns.headers[index] for index in sorted(left_out) if columns.headers[index])


def _least_width(columns: Columns, rows: Sequence[Sequence[str]], left_out: set[int]) -> int:
    kept = [index for index in range(len(columns.headers)) if index not in left_out]
    return sum(_least(columns, rows, index) for index in kept) + 2 * (len(kept) - 1)


def _least(columns: Columns, rows: Sequence[Sequence[str]], index: int) -> int:
    """How narrow a column may be: prose as its longest word, anything else as it is."""
    if index not in columns.prose:
        return _width(columns, rows, index)
    words = [word for text in _cells(columns, rows, index) for word in text.split()]
    return max((cell_len(word) for word in words), default=0)


def _width(columns: Columns, rows: Sequence[Sequence[str]], index: int) -> int:
    return max(cell_len(text) for text in _cells(columns, rows, index))


def _cells(columns: Columns, rows: Sequence[Sequence[str]], index: int) -> list[str]:
    return [columns.headers[index], *(row[index] for row in rows)]
