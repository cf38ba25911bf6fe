"""`giornata events` and `giornata logs`."""

from typing import Annotated

import typer

from giornata.cli.connection import connect
from giornata.cli.event_words import sentence
from giornata.cli.options import JobId, JsonFlag, settings_of
from giornata.cli.output import EXIT_PAUSED, Output, reporting
from giornata.client import Client
from giornata.domain.job import JobState

FollowFlag = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended, or is paused.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(events)
    app.command()(logs)


def events(context: typer.Context, job_id: JobId, follow: FollowFlag = False, as_json: JsonFlag = False) -> None:
    """Show what happened to a job."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        seen = []
        for event in client.events(job_id, follow=follow):
            out.say(sentence(event))
            if as_json:
                seen.append(event.model_dump(mode="json"))
        out.result({"items": seen})
        if follow:
            _end_paused(client, job_id, out)


def logs(context: typer.Context, job_id: JobId, follow: FollowFlag = False, as_json: JsonFlag = False) -> None:
    """Show what a job's workload said."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        seen = []
        for line in client.logs(job_id, follow=follow):
            out.say(line.line)
            if as_json:
                seen.append(line.model_dump(mode="json"))
        out.result({"items": seen})
        if follow:
            _end_paused(client, job_id, out)


def _end_paused(client: Client, job_id: str, out: Output) -> None:
    """There is nothing more to follow until somebody raises a budget; whoever called shall know."""
    job = client.get_job(job_id)
    if job.state is JobState.PAUSED:
        out.hint(f"{job.id} is paused: {job.waiting_because}")
        raise typer.Exit(EXIT_PAUSED)
