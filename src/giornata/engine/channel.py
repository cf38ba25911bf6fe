"""The engine's end of the pipe."""

import os
import sys
import threading
from typing import IO, Protocol

from giornata.protocol.model import Reply
from giornata.protocol.pipe import FromEngine


class Channel(Protocol):
    """Takes messages for the agent; safe to use from several threads."""

    def send(self, message: FromEngine) -> None: ...


class LineChannel:
    """Writes one JSON line for each message, whole, in the order of the calls."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """Write the message. A pipe that is closed means that the agent is gone: BrokenPipeError."""
        line = _line(message)
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


def _line(message: Reply) -> bytes:
    return message.model_dump_json().encode() + b"\n"


def take_stdout() -> IO[bytes]:
    """Keep the original standard output for messages, and let everything else that is printed go to stderr.

    Works on the file descriptors, so that prints of C libraries and of child processes are turned away as well.
    """
    sys.stdout.flush()
    kept = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return os.fdopen(kept, "wb", buffering=0)
