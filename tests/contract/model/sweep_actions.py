"""Sweeps are submitted, settled, given another budget, canceled and deleted.

Only where nobody else is at work: there every answer can be foretold.
"""

from tests.contract.model.actions import Actions
from tests.contract.model.calls import DIED
from tests.contract.model.claim_actions import MODELS
from tests.contract.model.model_rig import PROJECTS, Row, owner
from tests.contract.model.shares import costs_of

from giornata.control.attempts.ending.complete import complete
from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.jobs.settle_sweep import settle_sweeps
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.submit_sweep import submit_sweep
from giornata.control.projects.set_budget import change_job
from giornata.domain.errors import GiornataError, OverBudget
from giornata.domain.jobs.job import TERMINAL
from giornata.domain.jobs.reasons import Reason
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.jobs import ChangeJob
from giornata.protocol.node.work import CompleteAttempt
from giornata.protocol.sweeps import SubmitSweep

FOUR_UNDER_A_BUDGET = 8  # as `submit_sweep` reads a number
DEAREST = 3  # the operator's dearest machine
MOST_CLAIMS = 6
BUDGETS = (None, 1, 2_000, 50_000, 10**9)  # micro-dollars


class SweepActions(Actions):
    """Actions of owners of sweeps, and the loop that settles them."""

    def submit_sweep(self, a: int, b: int) -> None:
        """Two to four training jobs at once; with a key the repeat makes no other sweep."""
        if not self.exact:
            return
        project, key = PROJECTS[a % len(PROJECTS)], f"sweep-{next(self.actors.numbers):07d}"
        spec = {"model": MODELS[a % 2], "dataset": self.rig.datasets[project], "instance_prompt": "sks"}
        request = SubmitSweep(
            spec={**spec, "max_train_steps": 100},
            grid={"seed": tuple(range(2 + b % 3))},
            deadline_s=60 * (1 + b) if b % 7 == 0 else None,
            budget_micro_usd=BUDGETS[b % len(BUDGETS)],
        )
        outcome = self.call(lambda: submit_sweep(self.ctx, owner(project), request, key))
        if outcome is DIED:
            self.checker.look()
            outcome = self.call(lambda: submit_sweep(self.ctx, owner(project), request, key))
            if outcome is DIED:
                return
        if isinstance(outcome, OverBudget):
            self.unchanged()
            return
        rows = [row for row in self.checker.look().jobs if row.parent_id == outcome[0]]
        assert len(rows) == 2 + b % 3, f"{rows} of {outcome}"
        assert submit_sweep(self.ctx, owner(project), request, key) == (outcome[0], False)
        self.unchanged()
        self.actors.jobs += [(row.id, project) for row in rows]

    def settle_sweeps(self, a: int, b: int) -> None:
        """The loop; then each sweep is where its jobs' rows say."""
        if not self.exact or self.call(lambda: settle_sweeps(self.ctx), again=True) is DIED:
            return
        for sweep in self._sweeps():
            self._check_settled(sweep)

    def _check_settled(self, sweep: Row) -> None:
        rows = [row for row in self.checker.now.jobs if row.parent_id == sweep.id]
        left = [row for row in rows if row.state not in TERMINAL]
        stopped = sweep.state in {"canceled", "expired"}  # whoever stops it counts no more
        assert stopped or sweep.step == len(rows) - len(left), f"{sweep} does not count its jobs {rows}"
        if not left:
            states = {row.state for row in rows}
            best = next(each for each in ("succeeded", "failed", "expired", "canceled") if each in states)
            assert sweep.state in {best, "canceled", "expired"}, f"{sweep} has ended with {states}"
            return
        stands = all(row.state == "paused" for row in left)
        assert sweep.state == ("paused" if stands else "running"), f"{sweep} of {left}"
        held = [row for row in left if row.paused_by == "sweep"]
        assert sweep.budget_micro_usd is not None or not held, f"{held} wait for a budget that is none"

    def budget_of_sweep(self, a: int, b: int) -> None:
        """Its owner raises, lowers or lifts what all jobs of a sweep may cost, or one that waits for that money."""
        if sweep := self._some_sweep(a):
            waiting = [row for row in self.checker.now.jobs if row.parent_id == sweep.id and row.paused_by == "sweep"]
            target = waiting[a % len(waiting)] if waiting and b % 2 else sweep
            change = ChangeJob(budget_micro_usd=BUDGETS[b % len(BUDGETS)])
            outcome = self.call(lambda: change_job(self.ctx, owner(sweep.project_id), target.id, change))
            refused = target.state in TERMINAL or (target is not sweep and isinstance(outcome, OverBudget))
            assert outcome is DIED or isinstance(outcome, GiornataError) is refused, outcome

    def finish_one_of_sweep(self, a: int, b: int) -> None:
        """One job of a sweep is done, so that the cost of each is known; then there is room for some of the rest."""
        sweep = self._some_sweep(a)
        if sweep is None or sweep.state in TERMINAL:
            return
        swept = {row.id for row in self.checker.now.jobs if row.parent_id == sweep.id}
        alive = [it for it in self.actors.held if self.checker.attempts[it.attempt_id].ended_at_ms is None]
        held = next((it for it in alive if it.job_id in swept), None)
        if held is None:
            self.claim(3 * (a % 2), 1)  # a machine that costs nothing, or the dearest
            return
        self.rig.clock.advance_s(self.ctx.policy.lease_s / 2)
        report = CompleteAttempt(step=100, artifacts=sorted(held.artifacts))
        self.write(held, lambda: complete(self.ctx, held.attempt_id, report), end=Reason.SUCCEEDED)
        spent = sum(costs_of(self.checker.look(), swept).values())
        change = ChangeJob(budget_micro_usd=spent * (2 + b % 4) or None)
        self.call(lambda: change_job(self.ctx, owner(sweep.project_id), sweep.id, change))

    def fill_budget_of_sweep(self, a: int, b: int) -> None:
        """Four jobs under one budget: the first is done at a cost, and then there is room for one of the others."""
        if not self.exact:
            return
        self.submit_sweep(a, FOUR_UNDER_A_BUDGET)
        self.settle_sweeps(0, 0)
        sweep = self._some_sweep(0)
        for _ in range(MOST_CLAIMS):
            swept = {row.id for row in self.checker.look().jobs if sweep and row.parent_id == sweep.id}
            if self.actors.held and self.actors.held[-1].job_id in swept:
                break
            self.replace_process(DEAREST, 0)
            self.claim(DEAREST, 1)
        self.checker.look()
        self.finish_one_of_sweep(0, 1)
        self.settle_sweeps(0, 0)

    def cancel_sweep(self, a: int, b: int) -> None:
        """All of it, with the jobs that nodes are at work on."""
        if sweep := self._some_sweep(a):
            outcome = self.call(lambda: cancel(self.ctx, owner(sweep.project_id), sweep.id), again=True)
            refused = sweep.state in TERMINAL - {"canceled"}
            assert outcome is DIED or isinstance(outcome, GiornataError) is refused, outcome

    def delete_sweep(self, a: int, b: int) -> None:
        """All of it; one that has not ended only if it may be canceled."""
        sweep = self._some_sweep(a)
        if sweep is None:
            return
        seen, stop = self.checker.now, b % 2 == 0
        swept = {row.id for row in seen.jobs if row.parent_id == sweep.id and row.deleted_at_ms is None}
        pinned = [row for row in seen.jobs if row.id in swept and row.pinned]
        pinned += [row for row in seen.checkpoints if row.job_id in swept and row.pinned]
        refused = bool(pinned) or not (stop or sweep.state in TERMINAL)
        outcome = self.call(lambda: delete_job(self.ctx, owner(sweep.project_id), sweep.id, cancel=stop))
        assert outcome is DIED or isinstance(outcome, GiornataError) is refused, outcome
        self.checker.look()
        if self.checker.jobs[sweep.id].deleted_at_ms is not None:
            self.actors.jobs[:] = [each for each in self.actors.jobs if each[0] not in swept]

    def _sweeps(self) -> list[Row]:
        return [row for row in self.checker.look().jobs if row.kind == SWEEP_KIND and row.deleted_at_ms is None]

    def _some_sweep(self, a: int) -> Row | None:
        sweeps = self._sweeps() if self.exact else []
        return sweeps[-1 - a % min(len(sweeps), 3)] if sweeps else None
