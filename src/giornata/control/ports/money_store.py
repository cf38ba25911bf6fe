"""What budgets and the reports of costs ask of the store. Money is integer micro-dollars, instants epoch ms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A job that was moved out of the queue, or back into it."""

    job_id: str
    committed_step: int


class Spending(Protocol):
    """What was spent, shares of nodes included, and what is set aside."""

    def of_jobs(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        """By job, over all of its attempts up to their latest sign of life."""

    def settled(self, project_id: str, *, from_ms: int, before_ms: int) -> int:
        """By the project's attempts that ended in this time."""

    def unsettled(self, project_id: str, *, since_ms: int) -> int:
        """By the project's attempts that ended since, or live."""

    def reserved(self, project_id: str, *, but: str | None = None) -> int:
        """What the project's unfinished jobs have set aside and not spent yet, without that of the job `but`."""


class Pausing(Protocol):
    """Projects' budgets, and the jobs that wait for one to be raised."""

    def limited_projects(self) -> Sequence[tuple[str, int]]:
        """(id, budget) of the projects that have one."""

    def projects_waiting(self) -> Sequence[str]:
        """Projects with jobs that wait for the project's money."""

    def pause_queued(self, project_id: str, *, limit: int) -> Sequence[Parked]:
        """Move queued jobs of the project out of the queue. One whose silent attempt may come back stays, and so do
        those that somebody holds just now."""

    def resume_paused(self, project_id: str, *, limit: int) -> Sequence[Parked]:
        """Move jobs that wait for the project's money back into the queue, but those that somebody holds."""

    def warned(self, project_id: str, *, at_ms: int) -> bool:
        """Note that the project was warned; False when somebody has done so since its budget was set."""

    def lock_budget(self, project_id: str) -> int | None:
        """The project's budget; nobody else gets it locked before this transaction ends."""

    def set_budget(self, project_id: str, budget_micro_usd: int | None) -> bool:
        """Set or lift it; False when there is no such project."""


class MoneyTransaction(Protocol):
    """The groups of queries about money."""

    @property
    def spending(self) -> Spending: ...
    @property
    def pausing(self) -> Pausing: ...
