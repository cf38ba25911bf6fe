"""Write a server's log: to a file when a person looks at the terminal, else to standard error."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from giornata.domain.telemetry import log_fields
from giornata.domain.visible_text import visible_line

LogFormat = Literal["text", "json"]
FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
ACCESS = "giornata.access"


class JsonLines(logging.Formatter):
    """One JSON object a line: ts, level, logger, message, and what the line is about where that is known.

    `always` is in every line, such as the node. A line of the access log has the fields of its request.
    """

    def __init__(self, always: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._always = dict(always or {})

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        message = record.getMessage()
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
            **self._always,
            **log_fields(),
        }
        if record.name == ACCESS:
            line |= json.loads(message)
            line["message"] = f"{line['method']} {line['route']} {line['status']}"
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """One line for each message, whatever it quotes; a traceback follows in lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line of the record, with line ends and escape sequences of its message written out."""
        record.message = visible_line(record.message)
        return super().formatMessage(record)


def log_to_stderr(level: str, form: LogFormat = "text", *, always: Mapping[str, str] | None = None) -> None:
    """Send every log line to standard error, for a log collector."""
    everything = logging.StreamHandler(sys.stderr)
    everything.setFormatter(_formatter(form, always))
    logging.basicConfig(level=level.upper(), handlers=[everything])
    _quieten()


def log_to_file(level: str, file: Path, form: LogFormat = "text") -> None:
    """Send every log line to `file`, and lines that need attention to standard error as well."""
    file.parent.mkdir(parents=True, exist_ok=True)
    attention = logging.StreamHandler(sys.stderr)
    attention.setLevel(logging.WARNING)
    attention.setFormatter(TextLines("%(levelname)s %(name)s: %(message)s"))
    everything = logging.FileHandler(file)
    everything.setFormatter(_formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[everything, attention])
    _quieten()


def _formatter(form: LogFormat, always: Mapping[str, str] | None = None) -> logging.Formatter:
    return JsonLines(always) if form == "json" else TextLines(FORMAT)


def _quieten() -> None:
    # It reports each migration that was already there.
    logging.getLogger("alembic").setLevel(logging.WARNING)
