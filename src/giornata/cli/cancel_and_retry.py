"""`giornata cancel` and `giornata retry`."""

import typer

from giornata.cli.connection import connect
from giornata.cli.find_job import find_job
from giornata.cli.hints import giornata
from giornata.cli.options import JobId, JsonFlag, settings_of
from giornata.cli.output import reporting


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(cancel)
    app.command()(retry)


def cancel(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """End a job. Its checkpoints stay: retry goes on from them."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        job = client.cancel(find_job(client, job_id))
        out.say(f"{job.id} is {job.state}")
        out.hint(f"  go on later   {giornata('retry', job.id)}")
        out.result(job)


def retry(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Go on with a job that failed, expired or was canceled.

    A new job begins where the old one stopped. A job that waits for another machine is tried again now, where it is.
    """
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        asked = find_job(client, job_id)
        job = client.retry(asked)
        if job.id == asked:
            out.say(f"{job.id} is in the queue, and every machine may have it now")
        else:
            out.say(f"{job.id} goes on from step {job.committed_step} of {asked}")
        out.hint(f"  follow it     {giornata('follow', job.id)}")
        out.result(job)
