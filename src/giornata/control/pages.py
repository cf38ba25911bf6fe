"""Cursors and limits of lists. A cursor holds the place of a page's last row, so later rows move nothing."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from giornata.control.ports.user_queries.records import Rows
from giornata.domain.errors import Fault, InvalidInput

MOST_PER_PAGE = 1000
LARGEST = 2**63
_T = TypeVar("_T")


def encode_cursor(at_ms: int, row_id: str) -> str:
    """Return the opaque name of a place in a list."""
    return base64.urlsafe_b64encode(json.dumps([at_ms, row_id], separators=(",", ":")).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> tuple[int, str] | None:
    """Return the place that a cursor names; None for the beginning. Raises InvalidInput for anything else."""
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        place = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, UnicodeError, ValueError, RecursionError):
        raise _not_a_cursor() from None
    match place:
        case [int(at_ms), str(row_id)] if not isinstance(at_ms, bool) and 0 <= at_ms < LARGEST and "\0" not in row_id:
            return at_ms, row_id
    raise _not_a_cursor()


def check_limit(limit: int) -> None:
    """Raises InvalidInput unless 1 <= limit <= MOST_PER_PAGE."""
    if not 1 <= limit <= MOST_PER_PAGE:
        raise InvalidInput([Fault(where="limit", message=f"{limit} is not between 1 and {MOST_PER_PAGE}")])


def check_after(after: int, *, where: str) -> None:
    """Raises InvalidInput for a number that no row can have."""
    if not -1 <= after < LARGEST:
        raise InvalidInput([Fault(where=where, message=f"{after} is out of range", hint="pass the last one seen")])


def cut(rows: Sequence[_T], limit: int, place: Callable[[_T], tuple[int, str]]) -> tuple[Sequence[_T], str | None]:
    """Return a page of `limit` of the rows (one more was asked for), and the cursor of the next page if there is
    one.
    """
    page = rows[:limit]
    return page, encode_cursor(*place(page[-1])) if len(rows) > limit else None


def next_cursor(rows: Rows[_T], place: Callable[[_T], tuple[int, str]]) -> str | None:
    """Return the cursor of the page behind one that was read bounded, if there is one."""
    return encode_cursor(*place(rows.items[-1])) if rows.more else None


def _not_a_cursor() -> InvalidInput:
    hint = "pass `next` of the page before as it is, or leave it out to begin at the newest"
    return InvalidInput([Fault(where="cursor", message="is not a cursor that this server gave", hint=hint)])
