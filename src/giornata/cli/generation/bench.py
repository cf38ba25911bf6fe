"""`giornata bench`: measure an installation with a published benchmark."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.generation.bench_orders import BenchState, bench_jobs, order_parts, place_orders
from giornata.cli.generation.bench_report import report_of
from giornata.cli.jobs.inputs.base_models import sent_name
from giornata.cli.jobs.options.option_types import (
    GuidanceOption,
    ModelOption,
    PriorityOption,
    PromptsFile,
    SeedOption,
    SetOption,
)
from giornata.cli.jobs.options.order_options import (
    CheckedOrder,
    OrderOptions,
    OrderTerms,
    check_order,
    in_options,
    prompt_lines,
)
from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import EXIT_FAILED, EXIT_PAUSED, Output, reporting
from giornata.cli.ui.text import count
from giornata.cli.ui.watch import progress_bar
from giornata.client import STANDS_STILL, Client
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.jobs.job import JobState
from giornata.protocol.generation.specs import MAX_PICTURES

SIZE, STEPS, REFINER_STEPS = "1216x896", 20, 15
"""The settings of the published SDXL benchmark: 20 steps of the base, and 15 of a refiner."""
POLL_S = 2.0
STOPPED = "stopped looking; the orders go on, and the same command comes back to them"


def register(app: typer.Typer) -> None:
    """Add the command group `bench` to `app`."""
    bench = typer.Typer(no_args_is_help=True, help="Measure an installation with a published benchmark.")
    bench.command("images")(images)
    app.add_typer(bench, name="bench")


def images(
    context: typer.Context,
    prompts: PromptsFile[Path],
    model: ModelOption[str],
    number: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Number of pictures.")] = 60_600,
    refiner: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help=f"Refiner model, which draws {REFINER_STEPS} more steps. Default: none.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[str, typer.Option(metavar="WIDTHxHEIGHT", help="Size in pixels.")] = SIZE,
    steps: Annotated[int, typer.Option(help="Number of denoising steps of the base model.")] = STEPS,
    guidance: GuidanceOption = None,
    seed: SeedOption = None,
    assignments: SetOption = None,
    priority: PriorityOption[int] = 0,
    max_cost: Annotated[
        str | None,
        typer.Option(metavar="USD", help="Budget of all orders together, in US dollars.", show_default=False),
    ] = None,
    most: Annotated[
        int,
        typer.Option(
            "--order-size", metavar="N", min=1, max=MAX_PICTURES, help="Maximum number of pictures of one order."
        ),
    ] = MAX_PICTURES,
    state: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="File that records the orders, so that an interrupted benchmark can go on."
        ),
    ] = Path("bench-images.json"),
    as_json: JsonFlag = False,
) -> None:
    """Draw many pictures, and measure pictures per second and per dollar.

    The settings are those of a published SDXL benchmark. The pictures stay in storage. After an interruption the same
    command goes on: the state file names the orders, and no picture is ordered twice.
    """
    with reporting(as_json, stopped=STOPPED) as out:
        asked = OrderOptions(
            prompts=(),
            model=model,
            size=size,
            steps=steps + (0 if refiner is None else REFINER_STEPS),
            guidance=guidance,
            seed=seed,
            assignments=[*(assignments or ()), *_refined(refiner, steps)],
        )
        lines = prompt_lines(prompts)
        order = _checked(asked, lines, OrderTerms(priority=priority, max_cost=max_cost))
        parts = list(order_parts(lines, number, most=most))
        shared = {name: value for name, value in order.spec.items() if name not in {"prompts", "seed"}}
        told = {"spec": shared, "prompts": lines, "count": number, "order_size": most}
        kept = BenchState.opened(state, told, seed=seed)
        terms = {name: value for name, value in order.terms.items() if name != "name"}
        with connect(settings_of(context)) as client:
            resumed = len(kept.orders)
            with in_options():
                place_orders(client, kept, parts, shared, terms)
            said = f", {resumed} of them placed before" if resumed else ""
            out.say(f"{count(number, 'picture')} in {count(len(parts), 'order')}{said}; the state is in {state}")
            _wait(client, kept.key, number, out)
            status = _finish(client, kept, out)
    if status:
        raise typer.Exit(status)


def _refined(refiner: str | None, steps: int) -> list[str]:
    """Return the assignment that gives the refiner its steps after those of the base."""
    if refiner is None:
        return []
    told = {"model": {"name": sent_name(refiner)}, "switch_at": steps / (steps + REFINER_STEPS)}
    return [f"refiner={json.dumps(told)}"]


def _checked(asked: OrderOptions, lines: list[str], terms: OrderTerms) -> CheckedOrder:
    """Check the settings with every prompt. Raises InvalidInput with all faults."""
    if not lines:
        raise InvalidInput([Fault(where="--prompts", message="the file has no prompt", hint="a prompt on each line")])
    for first in range(0, len(lines), MAX_PICTURES):
        checked = check_order(replace(asked, prompts=lines[first : first + MAX_PICTURES]), terms)
    return checked


def _wait(
    client: Client, key: str, pictures: int, out: Output, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until every order of the benchmark has ended or is paused."""
    bar = progress_bar(out)
    task = bar.add_task("bench images", total=pictures, note="")
    with bar:
        while True:
            jobs = bench_jobs(client, key)
            bar.update(task, completed=sum(job.step for job in jobs))
            if all(job.state in STANDS_STILL for job in jobs):
                return
            sleep(POLL_S * (1 + pictures // MAX_PICTURES))


def _finish(client: Client, state: BenchState, out: Output) -> int:
    """Print the figures. Returns the exit status."""
    orders = [state.orders[number] for number in sorted(state.orders)]
    found = report_of(client, orders)
    for line in found.lines():
        out.say(line)
    out.result({"bench": state.key, "seed": state.seed, "orders": orders, **found.as_json()})
    paused = [job.id for job in bench_jobs(client, state.key) if job.state is JobState.PAUSED]
    for order in paused:
        out.hint(f"  paused        {giornata('budget', order, 'USD')}, and then the same command again")
    if paused:
        return EXIT_PAUSED
    return EXIT_FAILED if found.failed or found.canceled else 0
