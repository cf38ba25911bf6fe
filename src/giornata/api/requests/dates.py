"""Instants and days in a query, as RFC 3339 writes them.

Pydantic also takes a number, as seconds since 1970, which the OpenAPI document forbids.
"""

import re
from datetime import date, datetime
from typing import Annotated

from pydantic import BeforeValidator

NUMBER = re.compile(r"\s*[+-]?[0-9_.]+\s*")


def _no_number(value: str) -> str:
    """Return the text if it is not a number. Raises ValueError."""
    if NUMBER.fullmatch(value):
        raise ValueError("is a number, not a date; write it like 2026-01-31 or 2026-01-31T12:00:00Z")
    return value


Instant = Annotated[datetime, BeforeValidator(_no_number)]
Day = Annotated[date, BeforeValidator(_no_number)]
