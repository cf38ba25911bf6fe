"""The fields of a log line, and counts of observations by bounds."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
_about: ContextVar[Mapping[str, str]] = ContextVar("about", default={})  # noqa: B039 - nobody changes it


@contextmanager
def log_about(**fields: str) -> Iterator[None]:
    """Lines that are logged meanwhile carry these fields."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def log_fields() -> dict[str, str]:
    """The fields of the line that is logged now."""
    asked = request_id.get()
    return {**({"request_id": asked} if asked else {}), **_about.get()}


class Histogram:
    """Counts of observations up to each bound, and above the last one; and their sum.

    One thread observes. Others may read meanwhile, and then miss the observation that is being made.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one more value; a value equal to a bound counts as below the bound."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: "Histogram") -> None:
        """Add all counts of another histogram with the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
