"""`giornata loops`: what each loop of the server did last."""

import typer

from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import duration
from giornata.protocol.node.fleets import ServerLoop

LONGEST_DONE = 160


def register(app: typer.Typer) -> None:
    """Add the command `loops` to `app`."""
    app.command("loops")(show_loops)


def show_loops(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Show what each loop of the server did last.

    With several servers, it is the one that answers. Loops in trouble come first, with their last error.
    """
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found = client.loops()
        headers = ("loop", "state", "every", "succeeded", "runs", "errors", "did last", "when")
        rows = [_row(each) for each in found.items]
        out.table(headers, rows, right=(2, 3, 4, 5, 7), prose=(6,), spare=(4, 2))
        for each in found.items:
            if each.in_trouble:
                out.say(f"{each.name}: {each.last_error or 'it has not succeeded for a long time'}")
        out.result(found)


def _row(loop: ServerLoop) -> tuple[str, ...]:
    state = "late" if loop.late else "failing" if loop.in_trouble else "ok"
    return (
        loop.name,
        state,
        duration(loop.every_s),
        _ago(loop.last_success_age_s),
        str(loop.runs),
        str(loop.errors),
        loop.last_done[:LONGEST_DONE] or "–",
        _ago(loop.last_done_age_s),
    )


def _ago(age_s: float | None) -> str:
    return "–" if age_s is None else f"{duration(age_s)} ago"
