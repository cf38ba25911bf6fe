"""Tables as CSV (RFC 4180) that a spreadsheet opens without computing what a cell says."""

import csv
import io
from collections.abc import Iterable, Sequence

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet takes a cell that begins like this for a formula, or looks behind the white space for one."""


def csv_text(headers: Sequence[str], rows: Iterable[Sequence[str | int]]) -> str:
    """Return the table as CSV. A text that a spreadsheet would compute begins with an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([_cell(each) for each in row] for row in (headers, *rows))
    return text.getvalue()


def _cell(value: str | int) -> str | int:
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(FORMULA_STARTS) else value
