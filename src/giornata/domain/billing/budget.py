"""Budgets: limits of what a job, or all jobs of a project, may cost, in all or in a calendar month.

Money is integer micro-dollars. Months begin at midnight UTC.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

WARNED_AT_PERCENT = 80
MARGIN_PERCENT = 25
"""The reserve above an estimate: a job that is interrupted, or that gets a slower machine, costs more."""


class Payer(StrEnum):
    """The owner of a budget, in the order in which budgets stop a job. SWEEP is the budget of all jobs of the sweep
    that the job belongs to, MONTH the project's monthly budget."""

    JOB = "job"
    SWEEP = "sweep"
    PROJECT = "project"
    MONTH = "month"


_ORDER = tuple(Payer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLimits:
    """Budgets of a project: total and per month. None means no limit."""

    total_micro_usd: int | None = None
    monthly_micro_usd: int | None = None

    def __bool__(self) -> bool:
        """Return True when the project has any limit."""
        return self.total_micro_usd is not None or self.monthly_micro_usd is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The money that all attempts of a project spent, ever and in one calendar month."""

    total_micro_usd: int = 0
    month_micro_usd: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            total_micro_usd=self.total_micro_usd + other.total_micro_usd,
            month_micro_usd=self.month_micro_usd + other.month_micro_usd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit and what is spent of it."""

    payer: Payer
    limit_micro_usd: int
    spent_micro_usd: int
    month: str | None = None  # as 2026-11, of a budget per month

    @property
    def used_up(self) -> bool:
        """True when nothing may be spent any more. A limit of 0 is used up from the beginning."""
        return self.spent_micro_usd >= self.limit_micro_usd

    @property
    def share(self) -> float:
        """Return what is spent as a share of the limit; infinite for a limit of 0."""
        return self.spent_micro_usd / self.limit_micro_usd if self.limit_micro_usd else float("inf")

    @property
    def nearly(self) -> bool:
        """True when four fifths are spent."""
        return self.spent_micro_usd * 100 >= self.limit_micro_usd * WARNED_AT_PERCENT


def first_used_up(budgets: tuple[Budget, ...]) -> Budget | None:
    """The one that stops the job: its own before its project's, which another person has to raise.

    The project's budget in all comes before that per month, which lets the job go on by itself.
    """
    spent = [budget for budget in budgets if budget.used_up]
    return min(spent, key=lambda budget: _ORDER.index(budget.payer), default=None)


def project_budgets(limits: ProjectLimits, spent: Spent, *, at_ms: int) -> list[Budget]:
    """The budgets of the project at this instant, with the amounts spent."""
    found = []
    if limits.total_micro_usd is not None:
        found.append(
            Budget(payer=Payer.PROJECT, limit_micro_usd=limits.total_micro_usd, spent_micro_usd=spent.total_micro_usd)
        )
    if limits.monthly_micro_usd is not None:
        found.append(
            Budget(
                payer=Payer.MONTH,
                limit_micro_usd=limits.monthly_micro_usd,
                spent_micro_usd=spent.month_micro_usd,
                month=month_of(at_ms),
            )
        )
    return found


def month_start_ms(at_ms: int) -> int:
    """Return the start of this instant's calendar month, in epoch milliseconds, UTC."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return round(datetime(at.year, at.month, 1, tzinfo=UTC).timestamp()) * 1000


def month_end_ms(at_ms: int) -> int:
    """Return the end of this instant's calendar month, in epoch milliseconds, UTC."""
    # Every month has begun the next one 32 days after its first.
    return month_start_ms(month_start_ms(at_ms) + 32 * 24 * 3600 * 1000)


def month_of(at_ms: int) -> str:
    """Return the name of the calendar month, such as 2026-11."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m}"


def reservation_micro_usd(*, budget: int | None, estimate: int | None) -> int:
    """Return the part of its project's budget that a job reserves until the job ends.

    The job reserves its own budget; without one its estimate and a quarter more, rounded up; without either nothing.
    """
    if budget is not None:
        return budget
    return 0 if estimate is None else -(-estimate * (100 + MARGIN_PERCENT) // 100)


def fits(*, limit: int, spent: int, reserved: int, asked: int) -> bool:
    """Return True when a job that reserves `asked` may begin. `reserved`: unfinished jobs may still spend so much."""
    return spent + reserved + asked <= limit
