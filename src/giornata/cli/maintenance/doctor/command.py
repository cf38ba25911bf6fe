"""`giornata doctor`: what is wrong with an installation, and what to do."""

from typing import TYPE_CHECKING, Annotated

import typer

from giornata.cli.operate.server_libraries import server_libraries
from giornata.cli.options import DataOption, JsonFlag, flag, settings_of
from giornata.cli.settings import Settings
from giornata.cli.ui.output import EXIT_FAILED, Output, reporting
from giornata.cli.ui.text import count

if TYPE_CHECKING:
    from giornata.cli.maintenance.doctor.findings import Diagnosis

Servers = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Address of a server to examine besides; may be repeated.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command `doctor` to `app`."""
    app.command()(doctor)


def doctor(
    context: typer.Context,
    data: DataOption = None,
    database: Annotated[str | None, flag("database")] = None,
    blobs: Annotated[str | None, flag("blobs")] = None,
    public_url: Annotated[str | None, flag("public_url")] = None,
    server: Servers = None,
    as_json: JsonFlag = False,
) -> None:
    """Find what is wrong with an installation, and what to do.

    Run it where a server runs, with the server's settings. The exit status is 0 when nothing is wrong, and 1 when
    something is.
    """
    with reporting(as_json, stopped="stopped") as out:
        settings = settings_of(context, data=data, database=database, blobs=blobs, public_url=public_url)
        found = _diagnose(settings, tuple(server or ()))
        _say(out, found)
        out.result(found.as_json())
    if found.findings:
        raise typer.Exit(EXIT_FAILED)


def _diagnose(settings: Settings, servers: tuple[str, ...]) -> "Diagnosis":
    import httpx

    from giornata.cli.settings import s3_credentials_of
    from giornata.client.trust import trusted

    with server_libraries():
        from giornata.cli.maintenance.doctor.examine import examine
        from giornata.cli.maintenance.doctor.examined import ExaminedInstallation
        from giornata.cli.system import SystemClock
    with httpx.Client(verify=trusted()) as http:
        return examine(
            ExaminedInstallation(
                data=settings.data,
                database=settings.database or f"sqlite:///{settings.data / 'giornata.db'}",
                blobs=settings.blobs or f"file://{(settings.data / 'blobs').resolve()}",
                public_url=settings.public_url,
                has_fleets=any(table.driver != "local" for table in settings.fleets.values()),
                http=http,
                tls=trusted(),
                clock=SystemClock(),
                max_connections=settings.max_connections,
                max_connections_per_project=settings.max_connections_per_project,
                servers=servers,
                s3_credentials=s3_credentials_of(settings),
            )
        )


def _say(out: Output, found: "Diagnosis") -> None:
    for each in found.findings:
        out.say(f"{each.harm}: {each.message}")
        out.hint(f"  {each.fix}")
    for name, why in found.not_checked.items():
        out.hint(f"not checked: {name}: {why}")
    if not found.findings:
        out.say(f"Nothing is wrong: {count(len(found.checked), 'check')} made")
