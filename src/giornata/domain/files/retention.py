"""The time for which a project keeps what it owns, by class."""

from collections.abc import Mapping
from enum import StrEnum

DAY_MS = 86_400_000
MOST_DAYS = 36_500


class KeptClass(StrEnum):
    """The classes of what a project owns that each have a time for which they are kept."""

    DATASETS = "datasets"
    CHECKPOINTS = "checkpoints"
    ARTIFACTS = "artifacts"
    PICTURES = "pictures"
    LOGS = "logs"
    METRICS = "metrics"
    EVENTS = "events"


IN_DATABASE = frozenset({KeptClass.LOGS, KeptClass.METRICS, KeptClass.EVENTS})
"""Classes of which storage holds nothing: rows of the database."""
Retention = Mapping[KeptClass, int]
"""Days by class. What is not named is kept until somebody deletes it."""


def read_retention(stored: Mapping[str, int]) -> Retention:
    """Return the days of a project's row. A class that this version does not know is left out."""
    return {kept: stored[kept] for kept in KeptClass if kept in stored}


def ended_before_ms(days: int, *, now_ms: int) -> int:
    """Return the instant before which a job must have ended for its rows to go, or a dataset been used last."""
    return now_ms - days * DAY_MS


def parse_days(text: str) -> int | None:
    """Return the days of `30d`, `30` or `4w`; None for `none`, which keeps for ever.

    Raises ValueError that says what is expected.
    """
    lowered = text.strip().lower()
    if lowered == "none":
        return None
    unit = 7 if lowered.endswith("w") else 1
    digits = lowered.removesuffix("d") if unit == 1 else lowered.removesuffix("w")
    if not (digits.isascii() and digits.isdigit()) or not 1 <= int(digits) * unit <= MOST_DAYS:
        raise ValueError(f"{text[:40]!r} is not a time of 1 to {MOST_DAYS} days; such as 30d, 4w or none")
    return int(digits) * unit
