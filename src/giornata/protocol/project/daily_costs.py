"""Costs of a project's work on each day, and by a label of its jobs."""

from datetime import date

from pydantic import Field

from giornata.domain.billing.money import MICRO_USD
from giornata.domain.csv_text import csv_text
from giornata.protocol.model import Reply


class DailyCost(Reply):
    """The cost of one day; with a label, of the jobs that have one value of it."""

    day: date = Field(description="Day in UTC.")
    value: str | None = Field(
        None, description="Value of the label. null: the jobs have no such label, or were deleted."
    )
    cost_micro_usd: int


class DailyCosts(Reply):
    """`GET /v1/costs/days`: the newest day first. A day without cost has no line."""

    since: date = Field(description="The first day.")
    until: date = Field(description="The last day.")
    label: str | None = None
    items: tuple[DailyCost, ...]

    @property
    def total_micro_usd(self) -> int:
        """The cost of all days together."""
        return sum(each.cost_micro_usd for each in self.items)

    def as_csv(self) -> str:
        """Return the lines as CSV, with dollars to the micro-dollar."""
        headers = ("day", *([self.label] if self.label is not None else []), "cost_usd")
        return csv_text(headers, (self._row(each) for each in self.items))

    def _row(self, each: DailyCost) -> tuple[str, ...]:
        value = () if self.label is None else (each.value or "",)
        whole, rest = divmod(each.cost_micro_usd, MICRO_USD)
        return (each.day.isoformat(), *value, f"{whole}.{rest:06d}")
