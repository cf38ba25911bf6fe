"""Trains LoRAs on this machine, kills nodes meanwhile, and compares the bytes: `python -m examples.demo`."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from examples.demo.display import Display, clock
from examples.demo.report import JOB_HEADERS, SCORE_HEADERS, DemoOutcome, checks, job_rows, score_rows, summary
from examples.demo.run import DemoRun
from examples.demo.server import running_server
from examples.demo.settings import KILLS, NODES, PRICE_USD_PER_HOUR, SCORED_PICTURES, SUBJECTS, DemoSettings, prepare
from giornata.domain.errors import GiornataError, InvalidInput

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


def main(
    out: Annotated[Path, typer.Option(help="Directory for all files of the demo.")] = Path("demo-output"),
    jobs: Annotated[int, typer.Option(min=KILLS, max=len(SUBJECTS), help="Number of training jobs.")] = 3,
    steps: Annotated[int, typer.Option(min=40, max=100_000, help="Steps of each job.")] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Train LoRAs, kill nodes meanwhile, and compare the bytes.

    The base model is a small SDXL that draws shapes. Everything but its size is as it would be on rented GPUs.
    """
    # With --json, standard output holds the object alone, so that `| tail -1 | jq` always works.
    console = Console(stderr=as_json, highlight=False, emoji=False)
    settings = DemoSettings(out=out.resolve(), jobs=jobs, steps=steps)
    try:
        prepare(settings)
        outcome = _run(settings, console, live=console.is_terminal and not as_json)
    except InvalidInput as error:
        _print_error(error, console, as_json=as_json)
        raise typer.Exit(EXIT_BAD_INPUT) from None
    except GiornataError as error:
        _say(console, f"logs: {settings.log} and {settings.data / 'logs'}", style="dim")
        _print_error(error, console, as_json=as_json)
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        _say(console, "stopped, and everything that the demo had started", style="dim")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _print_report(settings, outcome, console)
    if as_json:
        _print_json(summary(outcome))
    if not summary(outcome)["ok"]:
        raise typer.Exit(EXIT_FAILED)


def _run(settings: DemoSettings, console: Console, *, live: bool) -> DemoOutcome:
    _say(console, f"{settings.jobs} jobs on {NODES} nodes; {KILLS} times a node is killed while it works.")
    with (
        _signals_as_interrupts(),
        Display(console, live=live) as display,
        running_server(settings, os.environ) as ready,
    ):
        outcome = DemoRun(settings=settings, display=display).run(ready)
        display.stage("ending the nodes and the server")
        return outcome


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """End the demo on SIGTERM and SIGHUP as on Ctrl-C, so that no process stays behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_report(settings: DemoSettings, outcome: DemoOutcome, console: Console) -> None:
    _print_table(console, JOB_HEADERS, job_rows(outcome), left=2)
    _say(console, f"at an assumed price of ${PRICE_USD_PER_HOUR:.2f} for an hour of a node", style="dim")
    if outcome.scores:
        _print_table(console, SCORE_HEADERS, score_rows(outcome.scores), left=1)
        _say(console, f"of {SCORED_PICTURES} pictures each, by a scorer without learned parts", style="dim")
    _say(console)
    verdict = checks(outcome)
    for check in verdict:
        _say(console, f"{'✓' if check.held else '✗'} {check.text}")
    _say(console)
    if outcome.grid.is_file():
        _say(console, f"pictures  {outcome.grid}")
    _say(console, f"LoRAs     {settings.loras('')}")
    if not all(check.held for check in verdict):
        _say(console, f"logs      {settings.log} and {settings.data / 'logs'}")
    _say(console, f"took {clock(outcome.seconds)} min", style="dim")


def _say(console: Console, text: str = "", *, style: str = "") -> None:
    console.print(text, style=style, markup=False, soft_wrap=True)


def _print_table(console: Console, headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> None:
    """Print a table on a terminal, and lines with tabs in a pipe. The first `left` columns are left-aligned."""
    _say(console)
    if not console.is_terminal:
        # Rich would replace the tabs.
        console.file.writelines("\t".join(row) + "\n" for row in (headers, *rows))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_error(error: GiornataError, console: Console, *, as_json: bool) -> None:
    faults = error.faults if isinstance(error, InvalidInput) else ()
    if as_json:
        listed = [{"where": fault.where, "message": fault.message, "hint": fault.hint} for fault in faults]
        _print_json({"error": {"code": error.code, "message": str(error), "hint": error.hint, "faults": listed}})
        return
    for text in faults or (error,):
        _say(console, str(text), style="bold red")


def _print_json(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    typer.run(main)
