"""Budgets are set, lifted, used up and raised, and months turn."""

from dataclasses import replace

from tests.contract.model.actions import DAY_S, Actions
from tests.contract.model.calls import DIED
from tests.contract.model.model_rig import PROJECTS, ROOT, owner

from giornata.control.budgets.budgets import project_spent
from giornata.control.memory.process_cache import ProcessCache
from giornata.control.projects.set_budget import change_job, set_project_budget, settle_budgets
from giornata.domain.billing.budget import month_start_ms, project_budgets
from giornata.domain.errors import GiornataError, OverBudget
from giornata.domain.jobs.job import TERMINAL
from giornata.protocol.jobs import ChangeJob
from giornata.protocol.project.admin import SetBudget

BUDGETS = (0, 1, 2_000, 50_000, 10**9)  # micro-dollars


class MoneyActions(Actions):
    """Actions of those who pay."""

    def budget(self, a: int, b: int) -> None:
        """Somebody sets or lifts what a job may cost."""
        if not self.actors.jobs:
            return
        job_id, project = self._some_job(a)
        was = self._state(job_id)
        change = ChangeJob(budget_micro_usd=BUDGETS[b % len(BUDGETS)] or None)
        outcome = self.call(lambda: change_job(self.ctx, owner(project), job_id, change))
        refused = was in TERMINAL or isinstance(outcome, OverBudget)
        assert outcome is DIED or not self.exact or isinstance(outcome, GiornataError) is refused, outcome

    def project_budget(self, a: int, b: int) -> None:
        """Somebody sets or lifts what a project may cost, in all or in a month."""
        project, limit = PROJECTS[a % len(PROJECTS)], BUDGETS[b % len(BUDGETS)] if b % 3 else None
        of_month = b >= 32
        change = SetBudget(monthly_budget_micro_usd=limit) if of_month else SetBudget(budget_micro_usd=limit)
        self.call(lambda: set_project_budget(self.ctx, ROOT, project, change))

    def very_long_wait(self, a: int, b: int) -> None:
        """A day; or a project has a budget per month meanwhile, and the month turns, or is about to."""
        if b % 2 == 0:
            super().very_long_wait(a, b)
            return
        queued = [job.project_id for job in self.checker.look().jobs if job.state == "queued"] if self.exact else []
        projects, limit = queued or PROJECTS, 0 if b % 4 == 1 else 2_000
        project = projects[a % len(projects)]
        self._set_monthly(project, limit)
        self.settle(a, b)
        now_ms = self.ctx.clock.now_ms()
        turn_ms = month_start_ms(month_start_ms(now_ms) + 32 * DAY_S * 1000)
        self.actors.latest_ms = max(self.actors.latest_ms, now_ms)
        self.rig.clock.advance_s((turn_ms - now_ms) / 1000 + (a - 8) * (b + 1))
        self.settle(a, b)
        self._set_monthly(project, None)
        self.settle(a, b)

    def _set_monthly(self, project: str, limit: int | None) -> None:
        change = SetBudget(monthly_budget_micro_usd=limit)
        self.call(lambda: set_project_budget(self.ctx, ROOT, project, change))

    def settle(self, a: int, b: int) -> None:
        """Whoever waits for the project's money waits because there is none, as soon as the loop has been here."""
        if self.call(lambda: settle_budgets(self.ctx)) is DIED or not self.exact:
            return
        seen = self.checker.look()
        with self.rig.store.read() as tx:
            limited = dict(tx.pausing.limited_projects())
            now_ms = self.ctx.clock.now_ms()
            fresh = replace(self.ctx, memory=ProcessCache())
            spent = {project: project_spent(tx, fresh, project, at_ms=now_ms) for project in limited}
        for job in (each for each in seen.jobs if each.paused_by in {"project", "month"}):
            assert job.project_id in limited, f"{job} waits for a budget that is none"
            budgets = project_budgets(limited[job.project_id], spent[job.project_id], at_ms=now_ms)
            assert any(budget.used_up for budget in budgets), f"{job} waits, and there is money: {budgets}"
