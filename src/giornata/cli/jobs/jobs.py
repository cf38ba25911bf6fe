"""`giornata jobs` and `giornata job`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.options import JobId, JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import ago, ahead, duration, standing, steps
from giornata.domain.billing.money import format_rate_usd, format_usd
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.jobs.job import JobState
from giornata.protocol.jobs import Attempt, Job, JobPart, PictureCounts

LEASES = 10
"""Leases of an order that are shown."""


def register(app: typer.Typer) -> None:
    """Add `jobs`, `job`, `cancel` and `retry` to `app`."""
    app.command("jobs")(list_jobs)
    app.command("job")(show_job)
    app.command()(cancel)
    app.command()(retry)


def list_jobs(
    context: typer.Context,
    state: Annotated[
        list[JobState] | None,
        typer.Option(
            metavar="STATE",
            help=f"Only jobs in this state; may be repeated. One of: {', '.join(JobState)}.",
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only jobs with this label; may be repeated.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only jobs of this kind, such as train, generate or sweep.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only jobs with this text in their name, in upper or lower case."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of jobs.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """List the jobs of the project, newest first."""
    with reporting(as_json) as out:
        labels = _labels(label or [])
        with connect(settings_of(context)) as client:
            # The table shows neither specs nor results; the JSON output has the whole jobs.
            parts = tuple(JobPart) if as_json else ()
            found = client.jobs(
                states=state or (), labels=labels, kind=kind or None, search=search or None, include=parts
            )
            jobs = [job for job, _ in zip(found, range(limit), strict=False)]
        if jobs or not out.live:
            _table(jobs, out)
        elif state or label or kind or search:
            out.hint("No job is like this.")
        else:
            out.hint("No jobs yet. Start one with:")
            out.hint(f'  {giornata()} train PICTURES --model MODEL --instance-prompt "a photo of sks dog"')
        out.result({"items": [job.model_dump(mode="json") for job in jobs]})


def show_job(
    context: typer.Context,
    job_id: JobId,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="Print the job's signed record, for giornata verify.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show one job with its attempts and its cost."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        if provenance:
            typer.echo(client.provenance(find_job(client, job_id)).model_dump_json(indent=2))
            return
        job = client.get_job(find_job(client, job_id))
        _describe(job, out)
        out.result(job)


def _table(jobs: Sequence[Job], out: Output) -> None:
    headers = ("id", "name", "state", "steps", "", "cost", "submitted")
    rows = [
        (
            job.id,
            job.name,
            standing(job),
            steps(job),
            "⚡" * job.interruptions,
            format_usd(job.cost_micro_usd),
            ago(job.created_at),
        )
        for job in jobs
    ]
    out.table(headers, rows, right=(3, 5, 6), prose=(1,), spare=(6, 4))


def _describe(job: Job, out: Output) -> None:
    out.say(f"{job.name}  {job.id}")
    out.say(f"  state       {standing(job)}" + (f": {job.waiting_because}" if job.waiting_because else ""))
    if job.next_try_at is not None:
        out.say(f"  next try    {ahead(job.next_try_at)}")
    if job.pictures is None:
        out.say(f"  steps       {steps(job)}, {job.committed_step} safe")
    else:
        out.say(f"  pictures    {job.total_steps}: {_by_state(job.pictures)}")
    out.say(f"  submitted   {ago(job.created_at)}" + (f" by {job.created_by}" if job.created_by else ""))
    out.say(f"  time        {duration(job.useful_s)} useful, {duration(job.lost_s)} lost")
    each = job.cost_per_useful_step_usd
    per_step = f", {format_rate_usd(each)} per useful step" if each else ""
    limit = f", at most {format_usd(job.budget_micro_usd)}" if job.budget_micro_usd is not None else ""
    out.say(f"  cost        {format_usd(job.cost_micro_usd)}{per_step}{limit}")
    if job.imported_cost_micro_usd is not None:
        out.say(f"  cost there  {format_usd(job.imported_cost_micro_usd)}, billed where it was imported from")
    if job.retry_of:
        out.say(f"  goes on from {job.retry_of}")
    if job.suspect:
        again = giornata("retry", job.id)
        out.say(f"  in doubt    an audit contradicts a machine of it; train it again at no cost: {again}")
    if job.error and not job.faults:
        out.say(f"  error       {job.error}")
    elif job.picture_error:
        out.say(f"  failed      {job.picture_error}; of each picture: {giornata('pictures', job.id)}")
    for fault in job.faults:
        out.say(f"  error       {fault.where}: {fault.message}" + (f" ({fault.hint})" if fault.hint else ""))
    if job.attempts and job.pictures is not None:
        _leases(job, out)
    elif job.attempts:
        out.say("")
        rows = [
            (
                f"#{a.number}",
                a.node_name,
                a.phase if a.ended_at is None else str(a.reason),
                f"{a.start_step}–{a.last_step}",
                str(a.committed_step),
                duration(a.billed_s),
                format_usd(a.cost_micro_usd),
            )
            for a in job.attempts
        ]
        out.table(("attempt", "node", "state", "steps", "safe", "billed", "cost"), rows, right=(3, 4, 5, 6))


def _leases(order: Job, out: Output) -> None:
    """Print the latest leases that began with a picture of the order; they may have pictures of others too."""
    out.say("")
    shown = order.attempts[-LEASES:]
    if len(shown) < len(order.attempts):
        out.hint(f"the latest {len(shown)} of {len(order.attempts)} leases")
    rows = [(a.node_name, _lease_state(a), duration(a.billed_s), format_usd(a.cost_micro_usd)) for a in shown]
    out.table(("node", "state", "billed", "cost"), rows, right=(2, 3))


def _lease_state(lease: Attempt) -> str:
    return "drawing" if lease.ended_at is None else str(lease.reason)


def _by_state(pictures: PictureCounts) -> str:
    """`3 succeeded, 1 queued`: the states that pictures are in."""
    return ", ".join(f"{number} {state}" for state, number in pictures.model_dump().items() if number)


def _labels(given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    faults = [
        Fault(where="--label", message=f"{''.join(pair)!r} is not KEY=VALUE")
        for pair in pairs
        if not pair[0] or not pair[1]
    ]
    if faults:
        raise InvalidInput(faults)
    return {key: value for key, _, value in pairs}


def cancel(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Cancel a job. Its checkpoints stay, so that you can retry it."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        job = client.cancel(find_job(client, job_id))
        out.say(f"{job.id} is {job.state}")
        out.hint(f"  retry         {giornata('retry', job.id)}")
        out.result(job)


def retry(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Continue a job that failed, ended early or is in doubt.

    A new job starts from the last checkpoint of the old job. A queued job that waits for another machine becomes
    available to every machine now. A job whose result an audit contradicts is trained again once, at no cost.
    """
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        asked = find_job(client, job_id)
        job = client.retry(asked)
        if job.id == asked:
            out.say(f"{job.id} is in the queue, and every machine may take it now")
        else:
            out.say(f"{job.id} continues from step {job.committed_step} of {asked}")
        out.hint(f"  follow        {giornata('follow', job.id)}")
        out.result(job)
