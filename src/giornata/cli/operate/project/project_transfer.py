"""`giornata project export` and `giornata project import`."""

from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.settings.private_files import new_private_file
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import count, size
from giornata.client.archives.export_project import export_project
from giornata.client.archives.import_project import import_project

NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="New tar file for the archive.", show_default=False)]
ArchiveFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Archive of `giornata project export`.", show_default=False)
]


def add_transfer_commands(project: typer.Typer) -> None:
    """Add `export` and `import` to the group `project`."""
    project.command("export")(export_to_file)
    project.command("import")(import_from_file)


def export_to_file(context: typer.Context, file: NewFile, as_json: JsonFlag = False) -> None:
    """Save the project of your key in one file: datasets, models, jobs, checkpoints, results, pictures.

    Secrets, keys and members are left out. You may go on working in the project.
    """
    with reporting(as_json, stopped="stopped; there is no archive") as out:
        with connect(settings_of(context)) as client, new_private_file(file) as target:
            done = export_project(client, target)
        out.say(
            f"{file} has {count(done.datasets, 'dataset')}, {count(done.models, 'model')} and "
            f"{count(done.jobs, 'job')} of {done.project_id}: {count(done.files, 'file')}, {size(done.size_bytes)}"
        )
        if done.running:
            out.say(f"{count(len(done.running), 'job')} had not ended; an import makes each of them a canceled job")
        out.hint(f"Import it elsewhere with: {giornata('project', 'import', str(file))}")
        out.result(
            {
                "file": str(file),
                "project_id": done.project_id,
                "datasets": done.datasets,
                "models": done.models,
                "jobs": done.jobs,
                "running": list(done.running),
                "files": done.files,
                "size_bytes": done.size_bytes,
            }
        )


def import_from_file(context: typer.Context, file: ArchiveFile, as_json: JsonFlag = False) -> None:
    """Import an archive into the project of your key. Jobs get new ids.

    The command verifies the whole archive before it sends anything. Repeat an import that broke off: it goes on.
    """
    with reporting(as_json, stopped="stopped; repeat the command to go on") as out:
        with connect(settings_of(context)) as client:
            done = import_project(client, file)
        out.say(
            f"{done.project_id} has {count(done.datasets, 'dataset')}, {count(done.models, 'model')} and "
            f"{count(len(done.jobs), 'job')} of {file}"
        )
        if done.left_out:
            out.hint(f"Sweeps without a job that is left are not imported: {', '.join(done.left_out)}")
        if done.withheld:
            out.say(
                f"{count(done.withheld, 'picture')} came in without bytes: the project blocks unsafe pictures, and "
                "these are unsafe, or no safety checker has seen them"
            )
        out.hint(f"An imported job is found by its old id: {giornata('jobs', '--label', 'imported-from=OLD-ID')}")
        out.result(
            {
                "project_id": done.project_id,
                "datasets": done.datasets,
                "models": done.models,
                "jobs": done.jobs,
                "left_out": list(done.left_out),
                "withheld": done.withheld,
            }
        )
