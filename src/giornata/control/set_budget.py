"""Budgets are set, raised, lowered and lifted; what waited for money goes on at once."""

from giornata.control.budgets import used_up
from giornata.control.context import Caller, Context
from giornata.control.pause import pause_job, resume_job
from giornata.control.permissions import require_root_admin, require_user
from giornata.control.ports.records import JobRecord
from giornata.control.ports.store import Transaction
from giornata.control.project_reply import read_project
from giornata.control.read_jobs import own_job, read_job
from giornata.control.reserve import require_room
from giornata.control.settle_budgets import settle_budgets
from giornata.control.texts import is_id
from giornata.domain.budget import Payer, reservation_micro_usd
from giornata.domain.errors import IllegalTransition, NotFound
from giornata.domain.job import TERMINAL, JobState
from giornata.protocol.admin import Project, SetBudget
from giornata.protocol.jobs import ChangeJob, Job


def set_project_budget(ctx: Context, caller: Caller, project_id: str, request: SetBudget) -> Project:
    """Set or lift a project's budgets, in all and per month; one that is not given stays.

    Running jobs of a project without money stop at their next heartbeat. Raises Forbidden unless the caller governs
    the installation, NotFound.
    """
    require_root_admin(caller)
    given = {
        Payer.PROJECT: ("budget_micro_usd", request.budget_micro_usd),
        Payer.MONTH: ("monthly_budget_micro_usd", request.monthly_budget_micro_usd),
    }
    budgets = {payer: value for payer, (field, value) in given.items() if field in request.model_fields_set}
    with ctx.store.begin() as tx:
        if not is_id(project_id) or not tx.pausing.set_budgets(project_id, budgets):
            raise NotFound(f"there is no project {project_id}")
    settle_budgets(ctx)
    with ctx.store.read() as tx:
        return read_project(tx, ctx, project_id)


def change_job(ctx: Context, caller: Caller, job_id: str, request: ChangeJob) -> Job:
    """Set or lift a job's budget. Raises Forbidden, NotFound, IllegalTransition for a job that has ended, and
    OverBudget when the project's budget has no room for the new one.

    A job that waited for this money is in the queue when this returns; a running one that has spent more than it may
    is told so at its next heartbeat.
    """
    require_user(caller)
    with ctx.store.begin() as tx:
        old = own_job(tx, caller, job_id)
        job = tx.jobs.lock(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        if job.state in TERMINAL:
            raise IllegalTransition(f"a job that is {job.state} spends nothing any more: its budget stays as it is")
        _set(tx, ctx, old, request.budget_micro_usd)
        _settle(tx, ctx, job_id)
        return read_job(ctx, tx, caller, job_id)


def _set(tx: Transaction, ctx: Context, job: JobRecord, budget: int | None) -> None:
    asked = reservation_micro_usd(budget=budget, estimate=None)
    if asked > job.reserved_micro_usd:
        require_room(tx, ctx, job, asked=asked)
    tx.jobs.update(job.id, budget_micro_usd=budget, reserved_micro_usd=asked, budget_warned_at_ms=None)


def _settle(tx: Transaction, ctx: Context, job_id: str) -> None:
    job, now_ms = tx.jobs.lock(job_id), ctx.clock.now_ms()
    if job is None or job.state is JobState.RUNNING:
        return
    stop = used_up(tx, ctx, job, at_ms=now_ms)
    if job.state is JobState.PAUSED:
        if stop is None:
            resume_job(tx, job, at_ms=now_ms)
        else:
            tx.jobs.update(job_id, paused_by=stop.payer)
    elif stop is not None and tx.attempts.live_of_job(job_id) is None:
        pause_job(tx, job, stop, at_ms=now_ms)
