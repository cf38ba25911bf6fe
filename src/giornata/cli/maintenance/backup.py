"""`giornata backup` and `giornata restore`, for an installation on SQLite and a folder."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from giornata.cli.operate.server_libraries import server_libraries
from giornata.cli.options import DataOption, JsonFlag, settings_of
from giornata.cli.settings import Settings
from giornata.cli.settings.hints import giornata
from giornata.cli.settings.private_files import keep_private
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import count, size
from giornata.domain.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from giornata.cli.maintenance.archive import EmbeddedInstallation

NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="New tar file for the backup.", show_default=False)]
BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="Backup of `giornata backup`.", show_default=False)]
WithKeys = Annotated[
    bool,
    typer.Option(
        "--with-keys",
        help="Also put secrets.key, admin.key and node.key into FILE. FILE then gives full access to the "
        "installation.",
    ),
]
RUNBOOK = "docs/how-to/backup.md"


def register(app: typer.Typer) -> None:
    """Add `backup` and `restore` to `app`."""
    app.command()(backup)
    app.command()(restore)


def backup(
    context: typer.Context,
    file: NewFile,
    data: DataOption = None,
    with_keys: WithKeys = False,
    as_json: JsonFlag = False,
) -> None:
    """Save an installation on SQLite in one file, while it runs.

    The file has a copy of the database and every object that the database names.
    """
    with reporting(as_json, stopped="stopped; there is no backup") as out:
        with server_libraries():
            from giornata.cli.maintenance.archive import write_backup
            from giornata.cli.system import SystemClock
        settings = settings_of(context, data=data)
        installation = _embedded(settings)
        keep_private()
        made = write_backup(file, installation, with_keys=with_keys, clock=SystemClock())
        at = datetime.fromtimestamp(made.copied_at_ms / 1000, UTC).isoformat(timespec="seconds")
        out.say(f"{file} has {count(made.objects, 'object')}, {size(made.size_bytes)}, as of {at}")
        _say_damage(out, made.damaged)
        if made.keys:
            out.hint(f"It holds {', '.join(made.keys)}: keep it as closed as these files.")
        else:
            out.hint(f"It holds no key: save {settings.data / 'secrets.key'} apart ({RUNBOOK}).")
        out.hint(f"Restore it with: {giornata('restore', str(file), data='NEW-FOLDER')}")
        out.result({"file": str(file), **made.model_dump(mode="json")})


def restore(
    context: typer.Context,
    file: BackupFile,
    data: DataOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Restore a backup into a new folder; verify every byte."""
    with reporting(as_json, stopped="stopped; the folder has no database, and restore may be repeated") as out:
        with server_libraries():
            from giornata.cli.maintenance.restoring import read_backup
        settings = settings_of(context, data=data)
        _check_places(settings)
        keep_private()
        restored = read_backup(file, settings.data)
        out.say(f"{settings.data} has {count(restored.objects, 'object')}, {size(restored.size_bytes)}, verified")
        _say_damage(out, restored.damaged)
        if "secrets.key" not in restored.keys:
            out.hint(f"Put the saved secrets.key into {settings.data} before the start ({RUNBOOK}).")
        out.hint(f"Start it with: giornata up --data {settings.data}")
        out.result({"data": str(settings.data), **restored.model_dump(mode="json")})


def _say_damage(out: Output, damaged: list[str]) -> None:
    if damaged:
        out.say(f"Storage had lost or changed {count(len(damaged), 'object')} before the backup:")
        for key in damaged:
            out.say(f"  {key}")


def _check_places(settings: Settings) -> None:
    """Raises InvalidInput for settings that put database or objects outside of the data folder."""
    hint = "leave the setting out: a backup is restored into the data folder"
    given = [name for name in ("database", "blobs") if getattr(settings, name) is not None]
    if given:
        raise InvalidInput(Fault(where=name, message="is set", hint=hint) for name in given)


def _embedded(settings: Settings) -> "EmbeddedInstallation":
    """Return the parts of the installation. Raises InvalidInput for one on PostgreSQL or S3."""
    from giornata.blobs.opening import folder_of
    from giornata.cli.maintenance.archive import EmbeddedInstallation
    from giornata.store.database.dialects import parse_url, sqlite_path

    hint = f"{RUNBOOK} says how to save PostgreSQL and S3"
    database = settings.data / "giornata.db"
    if settings.database is not None:
        url = parse_url(settings.database)
        if url.get_backend_name() != "sqlite":
            raise InvalidInput([Fault(where="database", message="is not SQLite", hint=hint)])
        database = sqlite_path(url)
    blobs = settings.data / "blobs" if settings.blobs is None else folder_of(settings.blobs)
    if blobs is None:
        raise InvalidInput([Fault(where="blobs", message="is not a folder", hint=hint)])
    return EmbeddedInstallation(database=database, blobs=blobs, data=settings.data)
