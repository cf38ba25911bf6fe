"""`giornata budget` and `giornata project budget`: limits of what jobs may cost."""

from typing import Annotated

import typer

from giornata.cli.connection import connect
from giornata.cli.options import JobId, JsonFlag, settings_of
from giornata.cli.output import Output, reporting
from giornata.cli.words import cost
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.job import JobState
from giornata.domain.money import format_usd, parse_usd
from giornata.protocol.admin import Project
from giornata.protocol.jobs import Job

NO_LIMIT = "none"
JobAmount = Annotated[
    str | None,
    typer.Argument(metavar="USD|none", help="Dollars, such as 0.50; none: no limit.", show_default=False),
]
ProjectAmount = Annotated[
    str, typer.Argument(metavar="USD|none", help="Dollars, such as 50; none: no limit.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the command; `project budget` stands with the other commands about projects."""
    app.command("budget")(job_budget)


def micro_usd(text: str, *, where: str) -> int:
    """What a person wrote, in micro-dollars. Raises InvalidInput that names the option."""
    try:
        return parse_usd(text)
    except ValueError as error:
        raise InvalidInput([Fault(where=where, message=str(error), hint="such as 0.50")]) from None


def job_budget(context: typer.Context, job_id: JobId, amount: JobAmount = None, as_json: JsonFlag = False) -> None:
    """Show what a job may cost, or change it. A job that was paused for want of money goes on when it is raised."""
    with reporting(as_json) as out:
        limit = None if amount is None else _limit(amount)
        with connect(settings_of(context)) as client:
            job = client.get_job(job_id) if amount is None else client.set_job_budget(job_id, limit)
            _say(job, out)
            out.result(job)


def project_budget(
    context: typer.Context,
    project_id: Annotated[str, typer.Argument(metavar="ID", help="The project's id.", show_default=False)],
    amount: ProjectAmount,
    as_json: JsonFlag = False,
) -> None:
    """Set what all jobs of a project may cost in all. Jobs that waited for the money go on."""
    with reporting(as_json) as out:
        budget_micro_usd = _limit(amount)
        with connect(settings_of(context)) as client:
            project = client.set_project_budget(project_id, budget_micro_usd)
            limit, spent, aside = money(project)
            out.say(f"{project.id}: {limit}" + (f", {spent} spent, {aside} set aside" if spent else ""))
            out.result(project)


def money(project: Project) -> tuple[str, str, str]:
    """Its budget, what is spent and what is set aside, for people."""
    if project.budget_micro_usd is None:
        return "no limit", "", ""
    return (
        format_usd(project.budget_micro_usd),
        cost(project.spent_micro_usd or 0),
        cost(project.reserved_micro_usd or 0),
    )


def _limit(amount: str) -> int | None:
    return None if amount == NO_LIMIT else micro_usd(amount, where="USD")


def _say(job: Job, out: Output) -> None:
    limit = "no limit" if job.budget_micro_usd is None else f"at most {format_usd(job.budget_micro_usd)}"
    out.say(f"{job.id} ({job.state}): {limit}, {cost(job.cost_micro_usd)} spent")
    if job.state is JobState.PAUSED and job.waiting_because:
        out.hint(f"  {job.waiting_because}")
