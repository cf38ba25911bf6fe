"""Where a server's log goes: to a file when a person is looking at the terminal, else to standard error."""

import logging
import sys
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def log_to_stderr(level: str) -> None:
    """Everything to standard error, for whoever collects it."""
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format=FORMAT)
    _quieten()


def log_to_file(level: str, file: Path) -> None:
    """Everything to `file`, and what needs somebody's attention to standard error as well."""
    file.parent.mkdir(parents=True, exist_ok=True)
    attention = logging.StreamHandler(sys.stderr)
    attention.setLevel(logging.WARNING)
    attention.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    everything = logging.FileHandler(file)
    everything.setFormatter(logging.Formatter(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[everything, attention])
    _quieten()


def _quieten() -> None:
    # It reports each migration that was already there.
    logging.getLogger("alembic").setLevel(logging.WARNING)
