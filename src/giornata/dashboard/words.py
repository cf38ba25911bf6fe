"""Texts of values on a page: money, time, sizes, and the sentences after an action."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from giornata.domain.billing.money import format_usd

# The sentence that a page shows after an action. The address names it, and holds no words itself.
SAID: Mapping[str, str] = MappingProxyType(
    {
        "canceled": "The job was canceled.",
        "ordered": "The pictures are ordered. They appear below as they are drawn.",
        "cells-ordered": "The cells are drawn again. They keep their seeds and settings.",
        "cells-refused": "Nothing was ordered: a cell is being drawn, has its picture, or was drawn again too often.",
        "submitted": "The job was submitted.",
        "retried": "The job is in the queue again, as a new job that goes on from the last checkpoint.",
        "deleted": "The job was deleted.",
        "several-deleted": "The chosen jobs were deleted.",
        "several-canceled": "The chosen jobs were canceled.",
        "several-retried": "The chosen jobs are in the queue again.",
        "some-refused": "Some of the chosen jobs were left alone: they had ended, had not ended yet, or are pinned.",
        "none-chosen": "No job was chosen.",
        "pictures-marked": "The chosen pictures are marked.",
        "pictures-deleted": "The files of the chosen pictures are deleted.",
        "pictures-refused": "Nothing was changed: an order is pinned, or is not there any more.",
        "no-picture-chosen": "No picture was chosen.",
        "no-tag": "Type a tag: small letters, digits, blanks, dots, dashes; several with commas.",
        "quarantined": "The machine is in quarantine.",
        "released": "The machine gets work again.",
        "fleet-paused": "The fleet is paused: its nodes finish and leave.",
        "fleet-resumed": "The fleet is resumed.",
        "drained": "The node gets no more jobs, and gives those it has back.",
        "undrained": "The node may have jobs again.",
        "fleet-scaled": "The limits of the fleet are set.",
        "saved": "Saved.",
        "revoked": "Revoked.",
        "removed": "Removed.",
        "replayed": "The dead deliveries are tried again.",
    }
)
MINUTE, HOUR, DAY = 60, 3600, 86_400
KIB = 1024


def as_sentence(message: str) -> str:
    """Return the message of a fault as it stands beside a field: `is no number` gets a subject."""
    return f"It {message}" if message.startswith(("is ", "has ", "must ")) else message[:1].upper() + message[1:]


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return "–"
    whole = max(0, round(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s" if whole % MINUTE else f"{whole // MINUTE} min"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def since(then: datetime | None) -> str:
    """Return how long ago an instant was, or how far ahead it is."""
    if then is None:
        return "–"
    seconds = (datetime.now(UTC) - then).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def instant_text(then: datetime | None) -> str:
    """Return an instant as a person reads it, in UTC."""
    return "–" if then is None else then.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(then: datetime) -> str:
    """Return an instant as the attribute `datetime` of a `time` element holds it."""
    return then.astimezone(UTC).isoformat(timespec="seconds")


def size(count: int | None) -> str:
    """Return a number of bytes in binary units."""
    if count is None:
        return "–"
    if count < KIB:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= KIB
        if value < KIB:
            return f"{value:.1f} {unit}"
    return f"{value / KIB:.1f} TiB"


def number(count: float | None) -> str:
    """Return a number with commas between thousands."""
    if count is None:
        return "–"
    return f"{count:,}" if isinstance(count, int) else f"{count:,.4g}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def spoken(name: str) -> str:
    """Return a name of the code as words: `lease_expired` is `lease expired`."""
    return str(name).replace("_", " ").replace("-", " ")


def short(text: str, most_chars: int = 80) -> str:
    """Return the text, cut to so many characters."""
    return text if len(text) <= most_chars else f"{text[: most_chars - 1]}…"


def amount(count: int | None, sort: str) -> str:
    """Return a number as `money` in micro-dollars, as the `size` of bytes, or as a plain `number`."""
    return {"money": format_usd, "size": size}[sort](count) if sort in {"money", "size"} else number(count)


def as_json(value: object) -> str:
    """Return a value as JSON in one line; nothing for an empty one."""
    return json.dumps(value, ensure_ascii=False) if value else ""


FILTERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "money": format_usd,
        "duration": duration,
        "since": since,
        "instant": instant_text,
        "iso": iso,
        "size": size,
        "number": number,
        "plural": plural,
        "spoken": spoken,
        "short": short,
        "amount": amount,
        "as_json": as_json,
        "as_sentence": as_sentence,
    }
)
