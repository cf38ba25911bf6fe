"""`giornata preprocess`: order annotations of picture files, and fetch them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from giornata.cli.jobs.download import folder_faults
from giornata.cli.jobs.options.option_types import NameOption, OutputOption, WaitOption
from giornata.cli.jobs.options.spec_options import parse_assignments
from giornata.cli.jobs.order_progress import finish_order, follow_order
from giornata.cli.options import JsonFlag, check_job_name, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import count
from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.protocol.generation.preprocess import MAX_IMAGES, PREPROCESS_KIND, PreprocessSpec

UNREAD = "0" * 64
"""Stands in a spec for the hash of a file that is not read yet, so that the rest can be checked."""
OPTIONS = {"annotator": "--annotator", "annotator_params": "--set", "images": "FILE"}


def register(app: typer.Typer) -> None:
    """Add the command `preprocess` to `app`."""
    app.command()(preprocess)


def preprocess(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Pictures to annotate.", show_default=False)],
    annotator: Annotated[str, typer.Option(help="Annotator, such as canny or depth.", show_default=False)],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Parameter of the annotator, as docs/reference/generation.md lists them. May be repeated.",
            show_default=False,
        ),
    ] = None,
    name: NameOption = None,
    output: OutputOption = None,
    wait: WaitOption = True,
    as_json: JsonFlag = False,
) -> None:
    """Make control pictures, such as edges or depth, from FILEs.

    The files are uploaded; annotations are numbered in their order, from 0. After Ctrl-C the order goes on.
    """
    with reporting(as_json) as out:
        settings = settings_of(context)
        faults = [] if output is None else folder_faults(output)
        if output is not None and not wait:
            hint = f"fetch the annotations later: {giornata('download', 'JOB', '-o', 'DIR')}"
            faults = [Fault(where="--output", message="cannot be combined with --no-wait", hint=hint)]
        spec = _checked_spec(files, annotator, assignments or (), name, faults)
        with connect(settings) as client:
            sent = client.upload_files(files)
            by_path = {each.path: each.sha256 for each in sent}
            spec["images"] = [by_path[path] for path in files]
            job = client.submit(spec, kind=PREPROCESS_KIND, name=name)
            out.say(f"{job.id} is in the queue: {count(len(files), 'annotation')}")
            if wait:
                status = finish_order(*follow_order(client, job, out, output=output), output, out)
            else:
                out.hint(f"  download      {giornata('download', job.id, '-o', 'annotations')}")
                out.result(job)
                status = 0
    if status:
        raise typer.Exit(status)


def _checked_spec(
    files: Sequence[Path], annotator: str, assignments: Sequence[str], name: str | None, faults: list[Fault]
) -> dict[str, Any]:
    """Return the spec without its images. Raises InvalidInput with all faults of the options, and `faults`."""
    params: dict[str, Any] = {}
    with collecting(faults):
        params = parse_assignments(assignments, spec=PreprocessSpec)
    with collecting(faults):
        check_job_name(name)
    spec = {"annotator": annotator, "annotator_params": params}
    _, found = parse_spec(PREPROCESS_KIND, {**spec, "images": [UNREAD] * min(len(files), MAX_IMAGES + 1)})
    faults += [replace(fault, where=_option(fault.where)) for fault in found]
    faults += _file_faults(files)
    if faults:
        raise InvalidInput(faults)
    return spec


def _option(where: str) -> str:
    field, _, rest = where.removeprefix("spec.").partition(".")
    return f"{OPTIONS.get(field, where)} {rest}".strip()


def _file_faults(files: Sequence[Path]) -> Iterator[Fault]:
    for path in files:
        if not path.is_file():
            said = "is a folder; name its files" if path.is_dir() else "does not exist"
            yield Fault(where="FILE", message=f"{path} {said}")
