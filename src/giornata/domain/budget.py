"""Budgets: limits of what a job, or all jobs of a project, may cost. Money is integer micro-dollars."""

from dataclasses import dataclass
from enum import StrEnum

WARNED_AT_PERCENT = 80
MARGIN_PERCENT = 25
"""What is reserved above an estimate: a job that is interrupted, or that gets a slower machine, costs more."""


class Payer(StrEnum):
    """Whose money it is."""

    JOB = "job"
    PROJECT = "project"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit and what is spent of it."""

    payer: Payer
    limit_micro_usd: int
    spent_micro_usd: int

    @property
    def used_up(self) -> bool:
        """Whether nothing may be spent any more. A limit of 0 is used up from the beginning."""
        return self.spent_micro_usd >= self.limit_micro_usd

    @property
    def nearly(self) -> bool:
        """Whether four fifths are spent."""
        return self.spent_micro_usd * 100 >= self.limit_micro_usd * WARNED_AT_PERCENT


def first_used_up(budgets: tuple[Budget, ...]) -> Budget | None:
    """The one that stops the job: its own before its project's, which somebody else has to raise."""
    spent = [budget for budget in budgets if budget.used_up]
    return min(spent, key=lambda budget: budget.payer is Payer.PROJECT, default=None)


def reservation_micro_usd(*, budget: int | None, estimate: int | None) -> int:
    """What a job sets aside of its project's budget until it ends.

    Its own budget; without one its estimate and a quarter more, rounded up; without either nothing.
    """
    if budget is not None:
        return budget
    return 0 if estimate is None else -(-estimate * (100 + MARGIN_PERCENT) // 100)


def fits(*, limit: int, spent: int, reserved: int, asked: int) -> bool:
    """Whether a job that sets aside `asked` may begin. `reserved` is what unfinished jobs may still spend."""
    return spent + reserved + asked <= limit
