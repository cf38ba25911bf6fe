"""The output of a command: tables on a terminal, plain lines in a pipe, one JSON object last with --json."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer
from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from giornata.cli.settings.hints import giornata, is_local
from giornata.domain.errors import (
    GiornataError,
    InvalidInput,
    NotFound,
    OverBudget,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from giornata.domain.visible_text import visible, visible_line

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_PAUSED = 3  # nothing is wrong with the job: it waits for money

JOBS = ("jobs",)


class Output:
    """Prints the output of one command. Texts of strangers command no terminal: see `visible`."""

    def __init__(self, *, as_json: bool, see: Sequence[str] = JOBS) -> None:
        self.as_json, self._see = as_json, see
        # With --json standard output holds the object alone, so that `| tail -1 | jq` always works.
        self.console = Console(stderr=as_json, highlight=False, soft_wrap=True, emoji=False)

    @property
    def live(self) -> bool:
        """True when a person is looking at a terminal that can redraw."""
        return self.console.is_terminal and not self.as_json

    def say(self, text: str) -> None:
        """Print a line for people, without markup."""
        self.console.print(visible(text), markup=False)

    def hint(self, text: str) -> None:
        """Print a line about the next step."""
        self.console.print(visible(text), style="dim", markup=False)

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: Sequence[int] = (),
        prose: Sequence[int] = (),
        spare: Sequence[int] = (),
    ) -> None:
        """A calm table on a terminal; tab-separated lines, with every column, in a pipe.

        `right` names right-aligned columns, `prose` those whose text may go over several lines, `spare` those that a
        narrow terminal can do without, the first one first.
        """
        rows = [[visible_line(cell) for cell in row] for row in rows]
        if not self.console.is_terminal:
            # Past rich, which makes spaces of tabs.
            self.console.file.writelines("\t".join(row) + "\n" for row in (headers, *rows))
            return
        columns = Columns(headers=tuple(headers), right=frozenset(right), prose=frozenset(prose), spare=tuple(spare))
        if left_out := print_table(self.console, columns, rows):
            self.hint(f"no room for: {', '.join(left_out)}")

    def result(self, value: BaseModel | dict[str, Any]) -> None:
        """The command's one JSON object; nothing without --json."""
        if self.as_json:
            document = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
            sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
            sys.stdout.flush()

    def error(self, error: GiornataError) -> None:
        """Print every fault of the error and the next step."""
        if self.as_json:
            faults = error.faults if isinstance(error, InvalidInput) else ()
            listed = [{"where": f.where, "message": f.message, "hint": f.hint} for f in faults]
            told = {"code": error.code, "message": str(error), "hint": self._next_step(error), "faults": listed}
            self.result({"error": told})
            return
        console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
        if isinstance(error, InvalidInput):
            console.print("This cannot be done as it is:", style="bold red")
            for fault in error.faults:
                console.print(f"  {visible(str(fault))}", markup=False)
            return
        console.print(visible(str(error)) or error.code, style="bold red", markup=False)
        if step := self._next_step(error):
            console.print(visible(step), style="dim", markup=False)

    def _next_step(self, error: GiornataError) -> str:
        """The hint of the error, or else the usual next step for this type of error."""
        if error.hint:
            return error.hint
        again = f"The server may have been killed. Start it again with: {giornata('up')}"
        elsewhere = "Is the server running, and is the URL right? Saved ones: giornata contexts"
        steps: dict[type[GiornataError], str] = {
            Unauthenticated: f"Log in again: {giornata('login', 'URL')}. Or set GIORNATA_API_KEY.",
            OverBudget: f"See what is set aside with: {giornata('project', 'list')}",
            NotFound: f"See what there is with: {giornata(*self._see)}",
            Unreachable: again if is_local() else elsewhere,
            Unavailable: "Try again in a moment. If that does not help, the server's log says more.",
        }
        return next((step for kind, step in steps.items() if isinstance(error, kind)), "")


@contextmanager
def reporting(
    as_json: bool, *, stopped: str = "stopped looking; the platform goes on", see: Sequence[str] = JOBS
) -> Iterator[Output]:
    """Runs a command's body; errors that were foreseen become words and an exit status. `stopped` is said after
    Ctrl-C. `see` is the command that lists what an unknown name may have meant."""
    out = Output(as_json=as_json, see=see)
    try:
        yield out
    except InvalidInput as error:
        out.error(error)
        raise typer.Exit(EXIT_BAD_INPUT) from None
    except GiornataError as error:
        out.error(error)
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        out.hint(stopped)
        raise typer.Exit(130) from None


GAP = 3
"""Spaces between two columns where there is room; two where there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The layout of a table's columns; numbers are the places of columns.

    `right` are right-aligned; `prose` may go over several lines; `spare` are left out where the terminal is too
    narrow, the first one named first.
    """

    headers: tuple[str, ...]
    right: frozenset[int]
    prose: frozenset[int]
    spare: tuple[int, ...]


def print_table(console: Console, columns: Columns, rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Print it, and return the headers of the columns that were left out.

    Where not even the rest fits, lines run over: half an id is worth nothing.
    """
    left_out: set[int] = set()
    for index in columns.spare:
        if _least_width(columns, rows, left_out) <= console.width:
            break
        left_out.add(index)
    kept = [index for index in range(len(columns.headers)) if index not in left_out]
    widths = [_width(columns, rows, index) for index in kept]
    wide = sum(widths) + GAP * (len(kept) - 1) <= console.width
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP if wide else 2, 0, 0))
    for index, width in zip(kept, widths, strict=True):
        table.add_column(
            columns.headers[index],
            justify="right" if index in columns.right else "left",
            no_wrap=index not in columns.prose,
            min_width=_least(columns, rows, index) if index in columns.prose else width,
        )
    for row in rows:
        # As text: a name in square brackets is a name, and no markup.
        table.add_row(*(Text(row[index]) for index in kept))
    console.print(table, width=max(console.width, _least_width(columns, rows, left_out)), crop=False, soft_wrap=False)
    return tuple(columns.headers[index] for index in sorted(left_out) if columns.headers[index])


def _least_width(columns: Columns, rows: Sequence[Sequence[str]], left_out: set[int]) -> int:
    kept = [index for index in range(len(columns.headers)) if index not in left_out]
    return sum(_least(columns, rows, index) for index in kept) + 2 * (len(kept) - 1)


def _least(columns: Columns, rows: Sequence[Sequence[str]], index: int) -> int:
    """Return the least width of a column: the longest word of prose, the whole cell of anything else."""
    if index not in columns.prose:
        return _width(columns, rows, index)
    words = [word for text in _cells(columns, rows, index) for word in text.split()]
    return max((cell_len(word) for word in words), default=0)


def _width(columns: Columns, rows: Sequence[Sequence[str]], index: int) -> int:
    return max(cell_len(text) for text in _cells(columns, rows, index))


def _cells(columns: Columns, rows: Sequence[Sequence[str]], index: int) -> list[str]:
    return [columns.headers[index], *(row[index] for row in rows)]
