"""Budgets are set, lifted, used up and raised."""

from tests.contract.model.calls import DIED
from tests.contract.model.house import PROJECTS, ROOT, owner
from tests.contract.model.town_deeds import Deeds

from giornata.control.set_budget import change_job, set_project_budget
from giornata.control.settle_budgets import settle_budgets
from giornata.domain.errors import GiornataError, OverBudget
from giornata.domain.job import TERMINAL
from giornata.protocol.admin import SetBudget
from giornata.protocol.jobs import ChangeJob

BUDGETS = (0, 1, 2_000, 50_000, 10**9)  # micro-dollars


class MoneyDeeds(Deeds):
    """Deeds of those who pay."""

    def budget(self, a: int, b: int) -> None:
        """Somebody sets or lifts what a job may cost."""
        if not self.town.jobs:
            return
        job_id, project = self._some_job(a)
        was = self._state(job_id)
        change = ChangeJob(budget_micro_usd=BUDGETS[b % len(BUDGETS)] or None)
        outcome = self.call(lambda: change_job(self.ctx, owner(project), job_id, change))
        refused = was in TERMINAL or isinstance(outcome, OverBudget)
        assert outcome is DIED or not self.exact or isinstance(outcome, GiornataError) is refused, outcome

    def project_budget(self, a: int, b: int) -> None:
        project, limit = PROJECTS[a % len(PROJECTS)], BUDGETS[b % len(BUDGETS)] if b % 3 else None
        self.call(lambda: set_project_budget(self.ctx, ROOT, project, SetBudget(budget_micro_usd=limit)))

    def settle(self, a: int, b: int) -> None:
        """Whoever waits for the project's money waits because there is none, as soon as the loop has been here."""
        if self.call(lambda: settle_budgets(self.ctx)) is DIED or not self.exact:
            return
        seen = self.witness.look()
        with self.house.store.read() as tx:
            limited = dict(tx.pausing.limited_projects())
        for job in seen.jobs:
            assert job.paused_by != "project" or job.project_id in limited, f"{job} waits for a budget that is none"
