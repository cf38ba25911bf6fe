"""`giornata generate`: order pictures, and fetch them."""

from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.jobs.download import folder_faults
from giornata.cli.jobs.estimate import say_estimate
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
    prompts_file: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="File with a prompt on each line.", show_default=False),
    ] = None,
    from_image: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Repeat the picture in this file, with the settings that it records. Other options change them.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Base model: a name, a hub id, or a folder.", show_default=False)
    ] = None,
    loras: Annotated[
        list[str] | None,
        typer.Option(
            "--lora",
            metavar="NAME[:WEIGHT]",
            help="LoRA: the job that trained it, or a name. May be repeated.",
            show_default=False,
        ),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--count", "-n", metavar="N", help="Pictures of each prompt. Default: 1.", show_default=False),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="WIDTHxHEIGHT", help="Size in pixels. Default: 1024x1024.", show_default=False),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps. Default: 30.", show_default=False)] = None,
    guidance: Annotated[float | None, typer.Option(help="Guidance scale. Default: 7.", show_default=False)] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Scheduler, such as 'DPM++ 2M Karras'. Default: euler.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the first picture. Default: a random one.", show_default=False)
    ] = None,
    negative: Annotated[str | None, typer.Option(help="Negative prompt.", show_default=False)] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any field of the spec, as docs/reference/generation.md describes it. May be repeated.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the order. Default: its id.", show_default=False)] = None,
    priority: Annotated[
        int, typer.Option(metavar="N", min=-100, max=100, help="Priority, from -100 to 100. Higher goes first.")
    ] = 0,
    max_cost: Annotated[
        str | None,
        typer.Option(
            metavar="USD", help="Budget in US dollars. The order pauses when it is spent.", show_default=False
        ),
    ] = None,
    min_vram: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Run only on nodes with at least this much GPU memory, such as 12GB.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--out",
            "-o",
            metavar="DIR",
            help="Download the pictures into this folder.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the pictures, or return when the order is placed.")
    ] = True,
    estimated: Annotated[
        bool, typer.Option("--estimate", help="Estimate the time and the cost of the order, and place nothing.")
    ] = False,
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
