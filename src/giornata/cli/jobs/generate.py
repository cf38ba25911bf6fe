"""`giornata generate`: order pictures, and fetch them."""

from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.jobs.download import folder_faults
from giornata.cli.jobs.estimate import say_estimate
from giornata.cli.jobs.option_types import (
    EstimateOption,
    GuidanceOption,
    LoraOption,
    MaxCostOption,
    MinVramOption,
    ModelOption,
    NameOption,
    NegativeOption,
    OutputOption,
    PriorityOption,
    PromptsFile,
    SchedulerOption,
    SeedOption,
    SetOption,
    SizeOption,
    StepsOption,
    WaitOption,
)
from giornata.cli.jobs.order_options import OrderOptions, OrderTerms, check_order, in_options
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
    app.command()(generate)


def generate(
    context: typer.Context,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Prompts; each in quotes.", show_default=False)
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
        typer.Option(metavar="FILE", help="Picture to start from; it is uploaded.", show_default=False),
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --image: mask of the picture's size, white where it is drawn anew; it is uploaded.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption[str | None] = None,
    loras: LoraOption = None,
    number: Annotated[
        int | None,
        typer.Option("--count", "-n", metavar="N", help="Pictures of each prompt. Default: 1.", show_default=False),
    ] = None,
    size: SizeOption = None,
    steps: StepsOption = None,
    guidance: GuidanceOption = None,
    scheduler: SchedulerOption = None,
    seed: SeedOption = None,
    negative: NegativeOption = None,
    assignments: SetOption = None,
    name: NameOption = None,
    priority: PriorityOption[int] = 0,
    max_cost: MaxCostOption = None,
    min_vram: MinVramOption = None,
    output: OutputOption = None,
    wait: WaitOption = True,
    estimated: EstimateOption = False,
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
            model=model,
            loras=loras,
            count=number,
            size=size,
            steps=steps,
            guidance=guidance,
            scheduler=scheduler,
            seed=seed,
            negative=negative,
            assignments=assignments or (),
        )
        terms = OrderTerms(name=name, priority=priority, max_cost=max_cost, min_vram=min_vram)
        order = check_order(asked, terms, _output_faults(output, wait=wait, estimated=estimated))
        for note in order.notes:
            out.hint(note)
        with connect(settings) as client:
            if estimated:
                found = client.estimate(order.spec, kind=GENERATE_KIND, priority=priority)
                say_estimate(found, out)
                return
            client.upload_files(order.files)
            with in_options():
                job = client.submit(order.spec, kind=GENERATE_KIND, **order.terms)
            status = _after(client, job, out, output=output, wait=wait)
    if status:
        raise typer.Exit(status)


def _output_faults(output: Path | None, *, wait: bool, estimated: bool) -> list[Fault]:
    if output is None or (wait and not estimated):
        return folder_faults(output)
    other = "--no-wait" if not wait else "--estimate"
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
