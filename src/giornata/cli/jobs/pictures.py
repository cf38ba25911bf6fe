"""`giornata pictures`: the pictures of an order or of the whole gallery, and what is done with several of them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.jobs.download import folder_faults
from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.options import JOB_HELP, JsonFlag, job_ids, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import size
from giornata.client import Client
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.visible_text import visible_line
from giornata.protocol.node.pictures import PictureId
from giornata.protocol.orders.gallery import MOST_MARKED, FoundPicture
from giornata.protocol.orders.order_pictures import OrderPicture

LONGEST_PROMPT = 20_000
LEAST_PROMPT = 24
OTHER_COLUMNS = 50
"""Characters that the columns before the prompt take, with what lies between."""
ID_COLUMN = 36
COLUMNS = ("number", "state", "seed", "size", "prompt")
MOST_ERRORS = 5
AnyJob = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help=f"{JOB_HELP} Default: pictures of all orders that have files.",
        show_default=False,
        autocompletion=job_ids,
    ),
]
Numbers = Annotated[
    list[int] | None,
    typer.Option("--number", metavar="N", min=0, help="Only this picture of JOB; repeatable.", show_default=False),
]
Words = Annotated[str | None, typer.Option(help="Words of the prompt; all must be there.", show_default=False)]
ModelName = Annotated[
    str | None, typer.Option("--model", help="Base model, as the order named it.", show_default=False)
]
LoraName = Annotated[
    str | None,
    typer.Option("--lora", help="LoRA, as the order named it; JOB finds JOB@STEP, too.", show_default=False),
]
Since = Annotated[
    datetime | None, typer.Option(metavar="TIME", help="Ordered not before this time, in UTC.", show_default=False)
]
Until = Annotated[
    datetime | None, typer.Option(metavar="TIME", help="Ordered before this time, in UTC.", show_default=False)
]
Starred = Annotated[bool, typer.Option("--starred", help="Only pictures with a star.")]
Tagged = Annotated[
    list[str] | None, typer.Option("--tagged", metavar="TAG", help="Only with this tag; may be repeated.")
]
Star = Annotated[
    bool | None, typer.Option("--star/--unstar", help="Give the pictures that are listed a star, or take it.")
]
AddTag = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="Give the pictures that are listed this tag.")
]
RemoveTag = Annotated[
    list[str] | None, typer.Option("--untag", metavar="TAG", help="Take this tag from the pictures that are listed.")
]
OutputFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Download the pictures that are listed here.", show_default=False),
]
Delete = Annotated[bool, typer.Option("--delete", help="Delete the files of the pictures that are listed.")]
Yes = Annotated[bool, typer.Option("--yes", help="With --delete: do not ask.")]


def register(app: typer.Typer) -> None:
    """Add the command `pictures` to `app`."""
    app.command("pictures")(list_pictures)


def list_pictures(
    context: typer.Context,
    job_id: AnyJob = None,
    numbers: Numbers = None,
    match: Words = None,
    model: ModelName = None,
    lora: LoraName = None,
    since: Since = None,
    until: Until = None,
    starred: Starred = False,
    tagged: Tagged = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of pictures.")] = 100,
    star: Star = None,
    tag: AddTag = None,
    untag: RemoveTag = None,
    output: OutputFolder = None,
    delete: Delete = False,
    yes: Yes = False,
    as_json: JsonFlag = False,
) -> None:
    """List or find pictures; star, tag, download or delete them.

    With JOB the command shows the pictures of one order, without JOB those of all orders.
    """
    search: dict[str, object] = {"match": match, "model": model, "lora": lora, "since": since, "until": until}
    asked = {name: value for name, value in search.items() if value is not None}
    asked |= {"starred": True} if starred else {}
    asked |= {"tags": tagged} if tagged else {}
    with reporting(as_json) as out:
        if faults := [*_faults(job_id, numbers, asked), *folder_faults(output)]:
            raise InvalidInput(faults)
        with connect(settings_of(context)) as client:
            order_id = None if job_id is None else find_job(client, job_id)
            if order_id is None:
                found: Iterable[OrderPicture] = client.find_pictures(**asked)  # type: ignore[arg-type]
            else:
                found = _numbered(client.pictures(order_id), numbers)
            pictures = list(islice(found, limit + 1))
            shown = pictures[:limit]
            _say_all(shown, out, order_id=order_id)
            if len(pictures) > limit:
                words = ("pictures", *([order_id] if order_id else []), "--limit", str(10 * limit))
                out.hint(f"there are more: {giornata(*words)}")
            keys = [PictureId(order_id=_order_of(each, order_id), number=each.number) for each in shown]
            _change(client, keys, out, star=star, tag=tag or (), untag=untag or ())
            files = [] if output is None else _save(client, shown, output, out)
            if delete and keys and (yes or typer.confirm(f"Delete the files of {len(keys)} pictures?")):
                _delete(client, keys, out)
        out.result({"items": [each.model_dump(mode="json") for each in shown], "files": files})


def _faults(job_id: str | None, numbers: Sequence[int] | None, asked: Iterable[str]) -> list[Fault]:
    if job_id is None:
        hint = "name the order of the pictures before it"
        return [Fault(where="--number", message="belongs to an order", hint=hint)] if numbers else []
    names = {"tags": "tagged"}
    hint = "leave the order out"
    return [
        Fault(where=f"--{names.get(name, name)}", message="finds pictures of all orders", hint=hint) for name in asked
    ]


def _numbered(pictures: Iterable[OrderPicture], numbers: Sequence[int] | None) -> Iterable[OrderPicture]:
    return pictures if numbers is None else (each for each in pictures if each.number in numbers)


def _order_of(picture: OrderPicture, order_id: str | None) -> str:
    return picture.order_id if isinstance(picture, FoundPicture) else order_id or ""


def _say_all(shown: Sequence[OrderPicture], out: Output, *, order_id: str | None) -> None:
    if not shown and out.live:
        out.hint("no picture is like this" if order_id is None else f"{order_id} has no pictures")
        return
    other = OTHER_COLUMNS if order_id else OTHER_COLUMNS + ID_COLUMN
    room = max(LEAST_PROMPT, out.console.width - other) if out.live else LONGEST_PROMPT
    rows = [_row(each, longest_prompt=room) for each in shown]
    if order_id is None:
        rows = [(_order_of(each, None), *row) for each, row in zip(shown, rows, strict=True)]
        out.table(("order", *COLUMNS), rows, right=(1, 3, 4))
    elif out.live:
        out.table(COLUMNS, rows, right=(0, 2, 3))
        _say_errors(shown, out)
    else:
        errors = [each.error or each.last_error or "" for each in shown]
        out.table((*COLUMNS, "error"), [(*row, error) for row, error in zip(rows, errors, strict=True)])


def _say_errors(shown: Sequence[OrderPicture], out: Output) -> None:
    """Print why pictures failed, or were not drawn the last time: a line for each cause, with its pictures."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for each in shown:
        if error := each.error or each.last_error:
            numbers["failed: " + error if each.error else "not drawn the last time: " + error].append(each.number)
    for said, some in list(numbers.items())[:MOST_ERRORS]:
        listed = ", ".join(map(str, some[:MOST_ERRORS])) + (", …" if len(some) > MOST_ERRORS else "")
        out.say(visible_line(f"{listed} {said}"))
    if len(numbers) > MOST_ERRORS:
        out.hint(f"and {len(numbers) - MOST_ERRORS} other causes: see --json")


def _change(
    client: Client,
    keys: Sequence[PictureId],
    out: Output,
    *,
    star: bool | None,
    tag: Sequence[str],
    untag: Sequence[str],
) -> None:
    if not keys or (star is None and not tag and not untag):
        return
    changed = 0
    for some in _parts(keys):
        changed += client.mark_pictures(some, starred=star, add_tags=tag, remove_tags=untag).changed
    out.say(f"changed {changed} stars and tags")


def _save(client: Client, shown: Sequence[OrderPicture], folder: Path, out: Output) -> list[str]:
    files = [client.download_picture(each, folder) for each in shown if each.request is not None]
    for file in files:
        out.say(f"{file}  {size(file.stat().st_size)}")
    return [str(file) for file in files]


def _delete(client: Client, keys: Sequence[PictureId], out: Output) -> None:
    freed = [client.delete_pictures(some) for some in _parts(keys)]
    objects, size_bytes = sum(each.objects for each in freed), sum(each.size_bytes for each in freed)
    out.say(f"deleted {objects} files, {size(size_bytes)}")


def _parts(keys: Sequence[PictureId]) -> list[Sequence[PictureId]]:
    return [keys[begin : begin + MOST_MARKED] for begin in range(0, len(keys), MOST_MARKED)]


def _row(picture: OrderPicture, *, longest_prompt: int) -> tuple[str, ...]:
    prompt = " ".join((picture.prompt or "").split())
    shortened = prompt if len(prompt) <= longest_prompt else prompt[: longest_prompt - 2] + " …"
    marks = ([*(["starred"] if picture.starred else []), *picture.tags]) if isinstance(picture, FoundPicture) else []
    said = [*picture.flags, *marks]
    state = f"{picture.state}, {', '.join(said)}" if said else str(picture.state)
    return (
        str(picture.number),
        state,
        str(picture.seed),
        "–" if picture.size_bytes is None else size(picture.size_bytes),
        shortened,
    )
