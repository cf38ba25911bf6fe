"""A program of pre-training: its arguments, and at the end its report, or what was wrong, as JSON in `--report`."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

from giornata.domain.errors import GiornataError, InvalidInput


def reported(
    file: Path | None,
    work: Callable[[], Mapping[str, Any]],
    status_of: Callable[[Mapping[str, Any]], int] = lambda _: 0,
) -> int:
    """Do the work and write down what it returns, or what was wrong; without a file that goes to standard error.

    Returns the exit status: `status_of` the report, 2 for faults of the input, 1 for other errors.
    """
    report: Mapping[str, Any]
    words = ""
    try:
        report = work()
        status = status_of(report)
    except InvalidInput as error:
        report, status, words = {"faults": [asdict(fault) for fault in error.faults]}, 2, str(error)
    except (GiornataError, OSError, MemoryError) as error:
        words = str(error) or type(error).__name__
        report, status = {"error": words}, 1
    if file is not None:
        file.write_text(json.dumps(report), encoding="utf-8")
    elif words:
        sys.stderr.write(f"{words}\n")
    return status


def program(main: Callable[..., int]) -> None:
    """Run `main` with the words of the command line, which typer reads as its signature says, and exit with the
    status that it returns."""
    import typer

    @wraps(main)
    def ended(**given: Any) -> None:
        sys.exit(main(**given))

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=sys.modules[main.__module__].__doc__)(ended)
    app()


def tell(message: Mapping[str, Any]) -> None:
    """Write progress as a JSON object on a line of standard output, for the command that began the program."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
