"""`giornata generate`: order pictures, and fetch them."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.jobs.download import folder_faults
from giornata.cli.jobs.estimate import say_estimate
from giornata.cli.jobs.options.option_groups import with_option_groups
from giornata.cli.jobs.options.option_types import PromptsFile
from giornata.cli.jobs.options.order_options import (
    DrawnOptions,
    OrderOptions,
    OrderTerms,
    ResultOptions,
    check_order,
    in_options,
)
from giornata.cli.jobs.order_progress import finish_order, follow_order
from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import count
from giornata.client import Client
from giornata.domain.errors import Fault
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.jobs import Job


def register(app: typer.Typer) -> None:
    """Add the command `generate` to `app`."""
    app.command()(with_option_groups(generate))


def generate(
    context: typer.Context,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Prompts. Put each in quotes.", show_default=False)
    ] = None,
    prompts_file: PromptsFile[Path | None] = None,
    from_image: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Repeat the picture in this file, with the settings that it records. Other options change them.",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Picture to start from (image-to-image). The command uploads it.", show_default=False
        ),
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --image: mask of the same size. White parts are drawn anew. The command uploads it.",
            show_default=False,
        ),
    ] = None,
    *,
    drawn: DrawnOptions,
    terms: OrderTerms,
    results: ResultOptions,
    as_json: JsonFlag = False,
) -> None:
    """Draw pictures of each PROMPT.

    The command checks everything before it places the order. Each picture is downloaded when it is done, and its file
    is named by the order and its number. After Ctrl-C the order goes on.
    """
    with reporting(as_json) as out:
        settings = settings_of(context)
        asked = OrderOptions(
            prompts=prompts or (),
            prompts_file=prompts_file,
            from_image=from_image,
            image=image,
            mask=mask,
            **asdict(drawn),
        )
        order = check_order(asked, terms, _output_faults(results))
        for note in order.notes:
            out.hint(note)
        with connect(settings) as client:
            if results.estimated:
                found = client.estimate(order.spec, kind=GENERATE_KIND, priority=terms.priority)
                say_estimate(found, out)
                return
            client.upload_files(order.files)
            with in_options():
                job = client.submit(order.spec, kind=GENERATE_KIND, **order.terms)
            status = _after(client, job, out, output=results.output, wait=results.wait)
    if status:
        raise typer.Exit(status)


def _output_faults(results: ResultOptions) -> list[Fault]:
    if results.output is None or (results.wait and not results.estimated):
        return folder_faults(results.output)
    other = "--no-wait" if not results.wait else "--estimate"
    hint = f"fetch the pictures later: {giornata('download', 'JOB', '-o', 'DIR')}"
    return [Fault(where="--output", message=f"cannot be combined with {other}", hint=hint)]


def _after(client: Client, job: Job, out: Output, *, output: Path | None, wait: bool) -> int:
    """Stay if that is wanted, and say what comes next. Returns the exit status."""
    out.say(f"{job.id} is in the queue: {count(job.total_steps or 0, 'picture')}, seed {job.spec['seed']}")
    if wait:
        return finish_order(*follow_order(client, job, out, output=output), output, out)
    out.hint(f"  follow        {giornata('follow', job.id)}")
    out.hint(f"  download      {giornata('download', job.id, '-o', 'pictures')}")
    out.result(job)
    return 0
