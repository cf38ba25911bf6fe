"""`giornata budget` and `giornata project budget`: limits of what jobs may cost."""

from typing import TYPE_CHECKING, Annotated

import typer

from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.options import JOB_HELP, JsonFlag, job_ids, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import micro_usd
from giornata.domain.billing.money import format_usd
from giornata.domain.errors import Fault, InvalidInput, NotFound
from giornata.domain.jobs.job import JobState
from giornata.protocol.jobs import Job
from giornata.protocol.project.admin import Project, SetBudget

if TYPE_CHECKING:
    from giornata.client import Client

NO_LIMIT = "none"
NEGATIVE = {"ignore_unknown_options": True}
"""For a command that takes an amount: -5 is an amount, which is refused as one, and no option."""
MonthlyAmount = Annotated[
    str | None,
    typer.Option(
        "--monthly",
        metavar="USD|none",
        help="Budget of the project for each calendar month (UTC), in US dollars. none: no limit.",
        show_default=False,
    ),
]
ProjectId = Annotated[
    str | None,
    typer.Option(
        "--project",
        metavar="ID",
        help="Show or set the budgets of this project instead of a job.",
        show_default=False,
    ),
]
OptionalJobId = Annotated[
    str | None, typer.Argument(metavar="JOB", help=JOB_HELP, show_default=False, autocompletion=job_ids)
]
JobAmount = Annotated[
    str | None,
    typer.Argument(
        metavar="USD|none", help="Budget of the job in US dollars, such as 0.50. none: no limit.", show_default=False
    ),
]
ProjectAmount = Annotated[
    str | None,
    typer.Argument(
        metavar="USD|none",
        help="Budget of the project in US dollars, such as 50. none: no limit.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command; `project budget` stands with the other commands about projects."""
    app.command("budget", context_settings=NEGATIVE)(job_budget)


def job_budget(
    context: typer.Context,
    job_id: OptionalJobId = None,
    amount: JobAmount = None,
    project: ProjectId = None,
    monthly: MonthlyAmount = None,
    as_json: JsonFlag = False,
) -> None:
    """Show or set the budget of a job.

    A job that is paused because its budget is spent resumes when the budget is raised. With --project, the command
    shows or sets the budgets of a project: in total and per month.
    """
    with reporting(as_json) as out:
        _check_one_is_named(job_id, project, monthly)
        if project is not None:
            _budget_of_project(context, project, None, monthly, out)
        if job_id is None:
            return
        limit = None if amount is None else _limit(amount)
        with connect(settings_of(context)) as client:
            found = find_job(client, job_id)
            job = client.get_job(found) if amount is None else client.set_job_budget(found, limit)
            _say(job, out)
            out.result(job)


def project_budget(
    context: typer.Context,
    project_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the project.", show_default=False)],
    amount: ProjectAmount = None,
    monthly: MonthlyAmount = None,
    as_json: JsonFlag = False,
) -> None:
    """Show or set the budgets of a project.

    Paused jobs of the project resume when the budget allows it. Without an amount the command shows the budgets.
    """
    with reporting(as_json, see=("project", "list")) as out:
        _budget_of_project(context, project_id, amount, monthly, out)


def _budget_of_project(
    context: typer.Context, project_id: str, amount: str | None, monthly: str | None, out: Output
) -> None:
    given = {"budget_micro_usd": (amount, "USD"), "monthly_budget_micro_usd": (monthly, "--monthly")}
    changes = {field: _limit(text, where=where) for field, (text, where) in given.items() if text is not None}
    with connect(settings_of(context)) as client:
        if changes:
            project = client.set_project_budgets(project_id, SetBudget(**changes))
        else:
            project = find_project(client, project_id)
    for line in budget_lines(project):
        out.say(line)
    out.result(project)


def find_project(client: "Client", project_id: str) -> Project:
    """Look up a project. Raises NotFound, also for a project that the key may not see."""
    for project in client.projects():
        if project.id == project_id:
            return project
    raise NotFound(f"there is no project {project_id}, or your key may not see it")


def budget_lines(project: Project) -> list[str]:
    """The budgets of a project, and what is spent of them."""
    limit, spent, aside = money(project)
    lines = [f"{project.id}: {limit}" + (f", {spent} spent, {aside} set aside" if spent else "")]
    if project.monthly_budget_micro_usd is not None:
        limit, spent = monthly_money(project)
        lines.append(f"  {limit} a month, {spent} spent in {project.month}")
    return lines


def money(project: Project) -> tuple[str, str, str]:
    """Return the budget, the spent and the reserved money, as words for people."""
    if project.spent_micro_usd is None:
        return "no limit", "", ""
    return (
        "no limit in all" if project.budget_micro_usd is None else format_usd(project.budget_micro_usd),
        format_usd(project.spent_micro_usd or 0),
        format_usd(project.reserved_micro_usd or 0),
    )


def monthly_money(project: Project) -> tuple[str, str]:
    """Return the budget per month, and the money spent in this month, as words for people."""
    if project.monthly_budget_micro_usd is None:
        return "", ""
    return format_usd(project.monthly_budget_micro_usd), format_usd(project.month_spent_micro_usd or 0)


def _check_one_is_named(job_id: str | None, project: str | None, monthly: str | None) -> None:
    faults = []
    if job_id is None and project is None:
        faults.append(Fault(where="ID", message="no job is named", hint="give the id of a job, or --project ID"))
    if job_id is not None and project is not None:
        hint = "to set the total budget of a project: giornata project budget ID USD"
        faults.append(Fault(where="--project", message="cannot be combined with the id of a job", hint=hint))
    if monthly is not None and project is None:
        faults.append(Fault(where="--monthly", message="applies only to a project", hint="add --project ID"))
    if faults:
        raise InvalidInput(faults)


def _limit(amount: str, *, where: str = "USD") -> int | None:
    return None if amount == NO_LIMIT else micro_usd(amount, where=where)


def _say(job: Job, out: Output) -> None:
    limit = "no limit" if job.budget_micro_usd is None else f"at most {format_usd(job.budget_micro_usd)}"
    out.say(f"{job.id} ({job.state}): {limit}, {format_usd(job.cost_micro_usd)} spent")
    if job.state is JobState.PAUSED and job.waiting_because:
        out.hint(f"  {job.waiting_because}")
