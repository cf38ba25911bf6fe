"""Turn the store's epoch milliseconds into the protocol's instants."""

from datetime import UTC, datetime, timedelta
from typing import overload

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@overload
def instant(at_ms: int) -> datetime: ...
@overload
def instant(at_ms: None) -> None: ...
def instant(at_ms: int | None) -> datetime | None:
    """Return the UTC instant, exact to the millisecond; None stays None."""
    return None if at_ms is None else EPOCH + timedelta(milliseconds=at_ms)
