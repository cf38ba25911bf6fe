"""`giornata follow`, `giornata events` and `giornata logs`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from giornata.cli.jobs.download import fetch_results, folder_faults
from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.jobs.order_progress import finish_order, follow_order
from giornata.cli.options import JobId, JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import EXIT_FAILED, EXIT_PAUSED, Output, reporting
from giornata.cli.ui.watch import coming_back, sentence, watch
from giornata.domain.errors import InvalidInput
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import JobState
from giornata.protocol.jobs import Job

if TYPE_CHECKING:
    from giornata.client import Client

FollowFlag = Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended, or is paused.")]


def register(app: typer.Typer) -> None:
    """Add `follow`, `events` and `logs` to `app`."""
    app.command()(follow)
    app.command()(events)
    app.command()(logs)


def follow(
    context: typer.Context,
    job_id: JobId,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Download the results into this folder.", show_default=False
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a job's progress until its end, and download its results.

    If the job has ended already, the command downloads its results at once.
    """
    with reporting(as_json) as out:
        if faults := folder_faults(output):
            raise InvalidInput(faults)
        with connect(settings_of(context)) as client:
            job = client.get_job(find_job(client, job_id))
            if job.kind in ORDER_KINDS:
                status = finish_order(*follow_order(client, job, out, output=output), output, out)
            else:
                status = finish(client, watch(client, job.id, out, output=output), output, out)
    if status:
        raise typer.Exit(status)


def finish(client: "Client", job: Job, output: Path | None, out: Output) -> int:
    """Download the results of a finished job, or print the command for it, and print the job as JSON.

    Returns the exit status.
    """
    files: tuple[Path, ...] = ()
    if job.state is JobState.SUCCEEDED:
        if output is None:
            out.hint(f"  download      {giornata('download', job.id, '-o', f'{job.name}-lora')}")
        else:
            files = fetch_results(client, job, output, out)
    out.result(job.model_dump(mode="json") | ({} if output is None else {"files": [str(file) for file in files]}))
    if job.state is JobState.SUCCEEDED:
        return 0
    return EXIT_PAUSED if job.state is JobState.PAUSED else EXIT_FAILED


def events(context: typer.Context, job_id: JobId, follow: FollowFlag = False, as_json: JsonFlag = False) -> None:
    """List the events of a job."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found, seen = find_job(client, job_id), []
        with coming_back(out, "events", found, "--follow"):
            for event in client.events(found, follow=follow):
                out.say(sentence(event))
                if as_json:
                    seen.append(event.model_dump(mode="json"))
        out.result({"items": seen})
        if follow:
            _end_paused(client, found, out)


def logs(context: typer.Context, job_id: JobId, follow: FollowFlag = False, as_json: JsonFlag = False) -> None:
    """Show the log of a job."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found, seen = find_job(client, job_id), []
        with coming_back(out, "logs", found, "--follow"):
            for line in client.logs(found, follow=follow):
                out.say(line.line)
                if as_json:
                    seen.append(line.model_dump(mode="json"))
        out.result({"items": seen})
        if follow:
            _end_paused(client, found, out)


def _end_paused(client: "Client", job_id: str, out: Output) -> None:
    """Exit with status 3 if the job is paused: it has no more events until its budget is raised."""
    job = client.get_job(job_id)
    if job.state is JobState.PAUSED:
        out.hint(f"{job.id} is paused: {job.waiting_because}")
        raise typer.Exit(EXIT_PAUSED)
