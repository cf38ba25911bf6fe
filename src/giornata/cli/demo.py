"""`giornata demo`: the main job, end to end, on this machine."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from giornata.cli import demo_learned
from giornata.cli.demo_board import board
from giornata.cli.demo_installation import running
from giornata.cli.demo_plan import EXAMINED, KILLS, NODES, PRICE_USD_PER_HOUR, SUBJECTS, Plan, prepare
from giornata.cli.demo_report import HEADERS, RIGHT, Outcome, checks, rows, summary
from giornata.cli.demo_story import Story, run_all
from giornata.cli.options import JsonFlag
from giornata.cli.ui.output import EXIT_FAILED, Output, reporting
from giornata.cli.ui.text import duration
from giornata.domain.errors import GiornataError, InvalidInput

EXIT_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Where everything is put.")] = Path("demo-output"),
    jobs: Annotated[int, typer.Option(metavar="N", min=KILLS, max=len(SUBJECTS), help="Training jobs.")] = 3,
    steps: Annotated[int, typer.Option(metavar="N", min=40, max=100_000, help="Steps of each job.")] = 300,
    as_json: JsonFlag = False,
) -> None:
    """Train LoRAs, kill nodes meanwhile, and compare the bytes.

    Real training of a small SDXL that draws shapes: everything but the model's size is as it would be on rented GPUs.
    """
    plan = Plan(out=out.resolve(), jobs=jobs, steps=steps)
    with reporting(as_json) as output:
        prepare(plan)
        try:
            with _ending_on_sigterm():
                outcome = _tell(plan, output)
        except KeyboardInterrupt:
            output.hint("stopped, and everything that the demo had started")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except InvalidInput:
            raise
        except GiornataError:
            output.hint(f"logs: {plan.log} and {plan.data / 'logs'}")
            raise
        _report(plan, outcome, output)
        output.result(summary(outcome))
    if not summary(outcome)["ok"]:
        raise typer.Exit(EXIT_FAILED)


def _tell(plan: Plan, output: Output) -> Outcome:
    output.say(f"{plan.jobs} jobs on {NODES} nodes; {KILLS} times a node is killed while it works.")
    with board(output) as shown, running(plan, environment=os.environ) as ready:
        outcome = Story(plan=plan, board=shown, run=run_all).tell(ready)
        shown.stage("ending the nodes and the server")
    return outcome


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, so that nothing it started stays behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(plan: Plan, outcome: Outcome, output: Output) -> None:
    output.say("")
    output.table(HEADERS, rows(outcome), right=RIGHT)
    output.hint(f"at an assumed price of ${PRICE_USD_PER_HOUR:.2f} for an hour of a node")
    output.say("")
    if outcome.learned:
        output.table(demo_learned.HEADERS, demo_learned.learned_rows(outcome.learned), right=demo_learned.RIGHT)
        output.hint(f"of {EXAMINED} pictures each, by a scorer without learned parts")
        output.say("")
    verdict = checks(outcome)
    for check in verdict:
        output.say(f"{'✓' if check.held else '✗'} {check.text}")
    output.say("")
    if outcome.grid.is_file():
        output.say(f"pictures  {outcome.grid}")
    output.say(f"LoRAs     {plan.loras('')}")
    if not all(check.held for check in verdict):
        output.say(f"logs      {plan.log} and {plan.data / 'logs'}")
    output.hint(f"took {duration(outcome.seconds)}")
