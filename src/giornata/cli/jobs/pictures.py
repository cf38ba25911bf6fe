"""`giornata pictures`: the pictures of an order."""

from itertools import islice
from typing import Annotated

import typer

from giornata.cli.jobs.find_job import find_job
from giornata.cli.options import JobId, JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import size
from giornata.protocol.order_pictures import OrderPicture

LONGEST_PROMPT = 20_000
LEAST_PROMPT = 24
OTHER_COLUMNS = 50
"""Characters that the columns before the prompt take, with what lies between."""


def register(app: typer.Typer) -> None:
    """Add the command `pictures` to `app`."""
    app.command("pictures")(list_pictures)


def list_pictures(
    context: typer.Context,
    job_id: JobId,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of pictures.")] = 100,
    as_json: JsonFlag = False,
) -> None:
    """List the pictures of an order."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found = find_job(client, job_id)
        pictures = list(islice(client.pictures(found), limit + 1))
        shown = pictures[:limit]
        if shown or not out.live:
            room = out.console.width - OTHER_COLUMNS if out.live else LONGEST_PROMPT
            rows = [_row(each, longest_prompt=max(LEAST_PROMPT, room)) for each in shown]
            out.table(("number", "state", "seed", "size", "prompt"), rows, right=(0, 2, 3))
        else:
            out.hint(f"{found} has no pictures")
        if len(pictures) > limit:
            out.hint(f"there are more: {giornata('pictures', found, '--limit', str(10 * limit))}")
        out.result({"items": [each.model_dump(mode="json") for each in shown]})


def _row(picture: OrderPicture, *, longest_prompt: int) -> tuple[str, ...]:
    prompt = " ".join((picture.prompt or "").split())
    shortened = prompt if len(prompt) <= longest_prompt else prompt[: longest_prompt - 2] + " …"
    state = f"{picture.state}, {', '.join(picture.flags)}" if picture.flags else str(picture.state)
    return (
        str(picture.number),
        state,
        str(picture.seed),
        "–" if picture.size_bytes is None else size(picture.size_bytes),
        shortened,
    )
