"""The end of a program of pre-training: its report, or what was wrong, as JSON in the file `--report`."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from giornata.domain.errors import GiornataError, InvalidInput


def reported(file: Path | None, work: Callable[[], Mapping[str, Any]]) -> int:
    """Do the work and write down what it returns, or what was wrong, which goes to standard error too.

    Returns the exit status: 0, 2 for faults of the input, 1 for other errors.
    """
    report: Mapping[str, Any]
    try:
        report, status = work(), 0
    except InvalidInput as error:
        report, status = {"faults": [asdict(fault) for fault in error.faults]}, 2
        sys.stderr.write(f"{error}\n")
    except (GiornataError, OSError, MemoryError) as error:
        report, status = {"error": str(error) or type(error).__name__}, 1
        sys.stderr.write(f"{report['error']}\n")
    if file is not None:
        file.write_text(json.dumps(report), encoding="utf-8")
    return status


def tell(message: Mapping[str, Any]) -> None:
    """Write progress as a JSON object on a line of standard output, for the command that began the program."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
