"""`giornata delete`, `pin`, `unpin`, `pins`, and `giornata project delete` and `retention`."""

from typing import Annotated

import typer

from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.operate.people.members import ProjectId
from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import ago, size
from giornata.client import Client
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.files.retention import KeptClass, parse_days
from giornata.protocol.project.end_of_life import Deletion, ProjectRetention, RetentionPreview, SetRetention

DATASETS_BEGIN_WITH = "ds_"
Target = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Job (id or name), dataset (ds_…) or checkpoint (JOB@STEP).", show_default=False
    ),
]
CancelFlag = Annotated[
    bool, typer.Option("--cancel", help="First cancel jobs that have not ended. Default: refuse to delete them.")
]
Times = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CLASS=TIME]...",
        help=f"CLASS is one of {', '.join(KeptClass)}; TIME such as 30d, 4w, or none: kept until deleted.",
        show_default=False,
    ),
]
ProjectOption = Annotated[
    str | None,
    typer.Option("--project", metavar="ID", help="Id of the project. Default: your own project.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the commands; those about projects stand with the other commands about projects."""
    app.command("delete")(delete)
    app.command("pin")(pin)
    app.command("unpin")(unpin)
    app.command("pins")(list_pins)


def add_retention_commands(project: typer.Typer) -> None:
    """Add `delete` and `retention` to the group `project`."""
    project.command("delete")(delete_project)
    project.command("retention")(retention)


def delete(context: typer.Context, target: Target, cancel: CancelFlag = False, as_json: JsonFlag = False) -> None:
    """Delete a job or a dataset with its files. Files that other jobs use stay, and costs stay."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        if target.startswith(DATASETS_BEGIN_WITH):
            deleted = client.delete_dataset(target)
        else:
            deleted = client.delete_job(find_job(client, target), cancel=cancel)
        _say(deleted, out)


def delete_project(
    context: typer.Context,
    project_id: ProjectId,
    confirm: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Id of the project again, as a confirmation. Default: the command asks for it.",
            show_default=False,
        ),
    ] = None,
    cancel: CancelFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete a project with its jobs, datasets, pictures, keys and members. Its costs stay."""
    with reporting(as_json, see=("project", "list")) as out:
        typed = confirm or typer.prompt(f"This deletes all of {project_id}. Its id once more")
        with connect(settings_of(context)) as client:
            _say(client.delete_project(project_id, confirm=typed, cancel=cancel), out)


def _say(deleted: Deletion, out: Output) -> None:
    freed = f"{deleted.objects} objects with {size(deleted.size_bytes)}"
    out.say(f"{deleted.what} {deleted.id} is deleted: {freed}")
    if not deleted.finished:
        out.hint("The server goes on by itself until nothing is left.")
    out.result(deleted)


def pin(context: typer.Context, target: Target, as_json: JsonFlag = False) -> None:
    """Keep a job, a dataset or a checkpoint (JOB@STEP).

    Neither retention nor `giornata delete` removes what is pinned, until you unpin it.
    """
    _set_pin(context, target, as_json=as_json, pinned=True)


def unpin(context: typer.Context, target: Target, as_json: JsonFlag = False) -> None:
    """Unpin a job, a dataset or a checkpoint (JOB@STEP).

    From then on retention and `giornata delete` may remove it.
    """
    _set_pin(context, target, as_json=as_json, pinned=False)


def _set_pin(context: typer.Context, target: str, *, as_json: bool, pinned: bool) -> None:
    with reporting(as_json, see=("pins",)) as out, connect(settings_of(context)) as client:
        word, at, step = target.partition("@")
        if not word.startswith(DATASETS_BEGIN_WITH):
            word = find_job(client, word)
        found = client.pin(f"{word}{at}{step}") if pinned else client.unpin(f"{word}{at}{step}")
        out.say(f"{found.target} is {'pinned' if found.pinned else 'not pinned any more'}")
        out.result(found)


def list_pins(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the pinned jobs, datasets and checkpoints of the project."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found = client.pins()
        if found or not out.live:
            out.table(("pinned",), [(each.target,) for each in found])
        else:
            out.hint(f"Nothing is pinned. Pin a job with: {giornata('pin', 'JOB')}")
        out.result({"items": [each.model_dump(mode="json") for each in found]})


def retention(
    context: typer.Context,
    times: Times = None,
    project: ProjectOption = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Show what would be deleted now, and change nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show or set how long a project keeps its data, such as checkpoints=30d.

    Classes that you leave out keep their times. About once an hour the server deletes older data. It keeps pinned
    data, and all data of a job that has not ended.
    """
    with reporting(as_json, see=("project", "list")) as out:
        changes = _changes(times or [])
        with connect(settings_of(context)) as client:
            project_id = project or client.me().project_id
            wanted = _changed(client, project_id, changes) if changes else None
            if preview:
                _preview(client.preview_retention(project_id, wanted), out)
            elif wanted is None:
                _show(client.retention(project_id), out)
            else:
                _show(client.set_retention(project_id, wanted), out)
                out.hint(f"  what goes     {giornata('project', 'retention', '--preview', '--project', project_id)}")


def _show(kept_for: ProjectRetention, out: Output) -> None:
    rows = []
    for kept in KeptClass:
        days = getattr(kept_for, kept.value)
        rows.append((kept.value, "until deleted" if days is None else f"{days} days"))
    out.table(("class", "kept"), rows)
    out.result(kept_for)


def _preview(aged: RetentionPreview, out: Output) -> None:
    rows = [
        (
            each.kept.value,
            f"{each.days} days",
            str(each.count),
            ("about " if each.is_estimate else "") + size(each.size_bytes),
            "" if each.oldest_at is None else ago(each.oldest_at),
            ", ".join(each.examples),
        )
        for each in aged.items
    ]
    out.table(("class", "kept", "would go", "bytes", "oldest", "of"), rows, right=(2, 3), spare=(5,))
    out.result(aged)


def _changed(client: Client, project_id: str, changes: dict[str, int | None]) -> SetRetention:
    """Return the project's times with these changes."""
    stands = client.retention(project_id).model_dump(include={kept.value for kept in KeptClass})
    return SetRetention.model_validate(stands | changes)


def _changes(times: list[str]) -> dict[str, int | None]:
    """Return days by class. Raises InvalidInput with every fault."""
    faults, changes = [], {}
    for text in times:
        name, _, value = text.partition("=")
        try:
            if name not in list(KeptClass):
                raise ValueError(f"{name[:40]!r} is not one of {', '.join(KeptClass)}")
            changes[name] = parse_days(value)
        except ValueError as error:
            faults.append(Fault(where="CLASS=TIME", message=str(error), hint="such as checkpoints=30d"))
    if faults:
        raise InvalidInput(faults)
    return changes
