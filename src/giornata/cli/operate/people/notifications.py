"""`giornata notifications`: mails about your own jobs."""

from typing import Annotated

import typer

from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.ui.output import reporting
from giornata.protocol.account.notifications import Notifications, SetNotifications, ToldJobs


def register(app: typer.Typer) -> None:
    """Add the command `notifications` to `app`."""
    app.command()(notifications)


def notifications(
    context: typer.Context,
    jobs: Annotated[
        ToldJobs | None,
        typer.Argument(
            help="Jobs that you get mails about: all that end, failures only, or none.", show_default=False
        ),
    ] = None,
    daily_digest: Annotated[
        bool, typer.Option("--daily-digest", help="One mail a day, at 07:00 UTC, instead of one for each job.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show or set the mails about your own jobs."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        if jobs is None:
            found = client.notifications()
        else:
            found = client.set_notifications(SetNotifications(jobs=jobs, daily_digest=daily_digest))
        out.say(_sentence(found))
        out.result(found)


def _sentence(found: Notifications) -> str:
    if found.jobs is ToldJobs.NONE:
        return f"no mails about your jobs in {found.project_id}"
    what = "jobs that end" if found.jobs is ToldJobs.ALL else "jobs that fail, expire or are paused"
    how = "once a day" if found.daily_digest else "at once"
    return f"mails to {found.email} about your {what} in {found.project_id}, {how}"
