"""The bar of steps that a person watches."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from giornata.cli.output import Output


def progress_bar(out: Output) -> Progress:
    """One line: name, bar, steps, time so far, time to go, and the task's field `note` as far as there is room.

    Nothing where nobody looks. What is to be printed meanwhile goes to the bar's own console.
    """
    # Not the console of plain output: its soft wrap lets a line that is too long spoil the redrawing.
    terminal = Console(file=out.console.file, force_terminal=True, highlight=False, emoji=False) if out.live else None
    console = terminal or out.console
    return Progress(
        TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", max_width=18)
        ),
        BarColumn(bar_width=16),
        TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        TextColumn(
            "{task.fields[note]}",
            style="dim",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        console=console,
        disable=not out.live,
        expand=True,
    )
