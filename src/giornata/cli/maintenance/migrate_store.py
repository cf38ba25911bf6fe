"""`giornata migrate-store`: from SQLite to PostgreSQL."""

from typing import TYPE_CHECKING, Annotated

import typer

from giornata.cli.operate.server_libraries import server_libraries
from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.ui.output import Output, reporting
from giornata.domain.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from giornata.store.transfer.copy_tables import CopiedBatch

SAY_EVERY_ROWS = 100_000

Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Database to move: sqlite:////FILE.", show_default=False)
]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="Empty database: postgresql://USER@HOST/NAME. Default: the setting database, which keeps a password off "
        "the command line.",
        show_default=False,
    ),
]
Abandon = Annotated[
    bool,
    typer.Option(
        "--abandon", help="Give up the move: servers may start on SOURCE again. TARGET keeps what was copied."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command `migrate-store` to `app`."""
    app.command("migrate-store")(migrate_store)


def migrate_store(
    context: typer.Context,
    source: Source,
    target: Target = None,
    abandon: Abandon = False,
    as_json: JsonFlag = False,
) -> None:
    """Move an installation from SQLite to PostgreSQL.

    Stop all servers on SOURCE first. No server starts on SOURCE afterwards. Repeat the command to resume a move that
    was stopped.
    """
    with reporting(as_json, stopped="stopped; the same command goes on where it was") as out:
        with server_libraries():
            from giornata.store.transfer.move_store import abandon_move, move_store
        if abandon:
            said = "Servers may start on it again" if abandon_move(source) else "No move concerns it"
            out.say(f"{said}: {source}")
            out.result({"source": source, "abandoned": True})
            return
        target = target or settings_of(context).database
        if target is None:
            hint = "give postgresql://USER@HOST/NAME, or set GIORNATA_DATABASE"
            raise InvalidInput([Fault(where="TARGET", message="is not given", hint=hint)])
        moved = move_store(source, target, on_batch=_Progress(out))
        out.say(f"{moved.target} has all rows of {source}; {moved.copied_rows} were copied now")
        out.hint(
            "Start servers with GIORNATA_DATABASE, GIORNATA_BLOBS and GIORNATA_SECRETS_KEY, which is the text of"
        )
        out.hint("secrets.key in the data folder. docs/how-to/backup.md tells how to move the objects.")
        out.result({"source": source, "target": moved.target, "copied_rows": moved.copied_rows})


class _Progress:
    """Says after each hundred thousand rows of a table how far the copy is."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def __call__(self, batch: "CopiedBatch") -> None:
        if batch.rows % SAY_EVERY_ROWS == 0:
            self._out.hint(f"{batch.table}: {batch.rows} rows")
