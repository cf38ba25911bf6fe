"""Inspects pictures in a process apart, and survives all harm that a picture can do to that process.

The process is `python -m giornata.pictures.inspector`. It is handed one picture at a time, so when it dies or falls
silent there is exactly one picture to blame: that one gets a fault, and a new process goes on with the next.
"""

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from giornata.domain.errors import Fault, Unavailable

INSPECTOR = "giornata.pictures.inspector"
START_TIMEOUT_S = 60.0
REPLY_CHARS = 1 << 20
STDERR_TAIL_BYTES = 2000
LEAVE_OUT = "open it in an image editor and save it anew as PNG or JPEG, or leave it out"


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLimits:
    """The limits on an accepted picture, and on the cost of its inspection. Sides in pixels; `max_aspect` is longer
    side over shorter.

    `memory_bytes` is the address space of the whole process, `cpu_s` the processor time of one picture.
    """

    max_pixels: int = 64_000_000
    max_side_px: int = 16_384
    min_side_px: int = 64
    max_aspect: float = 8.0
    max_file_bytes: int = 50 * 2**20
    memory_bytes: int = 2 * 2**30
    cpu_s: int = 15

    def flags(self) -> tuple[str, ...]:
        """Return the limits as the process's command line takes them."""
        return (
            f"--max-pixels={self.max_pixels}",
            f"--max-side={self.max_side_px}",
            f"--min-side={self.min_side_px}",
            f"--max-aspect={self.max_aspect}",
            f"--max-bytes={self.max_file_bytes}",
            f"--memory-bytes={self.memory_bytes}",
            f"--cpu-s={self.cpu_s}",
        )


DEFAULT_LIMITS = PictureLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureInspection:
    """The findings about one picture. A picture without faults can be trained on.

    Width and height are in pixels, as a viewer shows the picture; None when its header could not be read.
    """

    name: str
    format: str | None
    width: int | None
    height: int | None
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]


def inspect(
    files: Sequence[tuple[str, Path]],
    *,
    limits: PictureLimits = DEFAULT_LIMITS,
    python: str = sys.executable,
    timeout_s_each: float = 20,
) -> list[PictureInspection]:
    """Inspect every (name, path), and return one PictureInspection each, in the same order.

    A picture that kills the process, or keeps it busy for more than `timeout_s_each` seconds, gets a fault and
    costs the others nothing. Raises Unavailable when the process cannot even be started.
    """
    with _Inspector(python, limits, timeout_s_each) as inspector:
        return [inspector.look(name, path) for name, path in files]


class _Lost(Exception):
    """An error: the process is of no more use; the text says what the picture did. `died`: the process ended by
    itself, not for a time limit."""

    def __init__(self, message: str, *, died: bool) -> None:
        super().__init__(message)
        self.died = died


class _Inspector:
    """An inspector of one picture after another, with as many processes as that takes."""

    def __init__(self, python: str, limits: PictureLimits, timeout_s_each: float) -> None:
        self._python, self._limits, self._timeout_s = python, limits, timeout_s_each
        self._process: _Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def look(self, name: str, path: Path) -> PictureInspection:
        """Return the process's reply on a picture, or a fault that says what the picture did to the process."""
        is_fresh = self._process is None
        try:
            self._process = self._process or _Process(self._python, self._limits)
            return self._process.ask(name, path, self._timeout_s)
        except _Lost as lost:
            self._end()
            if lost.died and not is_fresh:
                # It may have died of an earlier picture, or been killed for want of memory: a fresh one tells.
                return self.look(name, path)
            fault = Fault(where=name, message=str(lost), hint=LEAVE_OUT)
            return PictureInspection(name=name, format=None, width=None, height=None, faults=(fault,), notes=())

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
        self._process = None


class _Process:
    """One run of the inspector. `ask` it until it raises _Lost; `end` it in any case."""

    def __init__(self, python: str, limits: PictureLimits) -> None:
        # -P: a file of the user's called PIL.py, in the folder they are in, must not be imported.
        command = [python, "-P", "-m", INSPECTOR, "--announce", *limits.flags()]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end(); a pipe could fill up and block
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the caller, which ends this process itself
            )
        except OSError as error:
            self._stderr.close()
            raise Unavailable(f"pictures cannot be inspected: {python} does not start: {error}") from error
        self._stdin, stdout = _piped(self._popen)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=_read_lines, args=(stdout, self._lines), daemon=True)
        self._reader.start()
        self._await_ready()

    def _await_ready(self) -> None:
        try:
            line = self._lines.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            line = None
        if line is None:
            tail = self._stderr_tail()
            self.end()
            raise Unavailable(f"pictures cannot be inspected: the inspecting process did not start: {tail}")

    def _stderr_tail(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=1)
        size_bytes = self._stderr.seek(0, 2)
        self._stderr.seek(max(0, size_bytes - STDERR_TAIL_BYTES))
        return self._stderr.read().decode("utf-8", "replace").strip() or "it said nothing"

    def ask(self, name: str, path: Path, timeout_s: float) -> PictureInspection:
        """Return the process's reply on one picture. Raises _Lost when there is none."""
        try:
            self._stdin.write(json.dumps({"name": name, "path": str(path.absolute())}) + "\n")
            self._stdin.flush()
            line = self._lines.get(timeout=timeout_s)
        except OSError:  # the pipe is broken: it died before it could be asked
            line = None
        except queue.Empty:
            raise _Lost(f"could not be decoded within {timeout_s:g} s", died=False) from None
        if line is None:
            raise _Lost(self._last_words(), died=True)
        try:
            return _parse(name, line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _Lost("makes the decoder answer nonsense", died=False) from error

    def _last_words(self) -> str:
        try:
            code = self._popen.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "makes the decoder stop answering"
        if code < 0 and -code == getattr(signal, "SIGXCPU", None):
            return "takes too much processor time to decode"
        if code < 0 and -code == getattr(signal, "SIGKILL", None):
            return "had the decoder killed, most likely for the memory it took"
        if code < 0:
            return f"crashes the decoder ({signal.strsignal(-code) or f'signal {-code}'})"
        return f"makes the decoder exit (status {code})"

    def end(self) -> None:
        """Kill the process if it lives, and free everything."""
        self._popen.kill()
        self._popen.wait()
        self._reader.join(timeout=1)
        with suppress(OSError):  # no process reads what was not flushed
            self._stdin.close()
        self._stderr.close()


def _piped(popen: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if popen.stdin is None or popen.stdout is None:
        raise TypeError("stdin and stdout are pipes")
    return popen.stdin, popen.stdout


def _read_lines(stdout: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Move lines from the pipe to the queue; None at its end. A thread, because Windows cannot poll pipes."""
    with stdout:
        for line in iter(lambda: stdout.readline(REPLY_CHARS), ""):
            lines.put(line)
    lines.put(None)


def _parse(name: str, line: str) -> PictureInspection:
    """Parse a reply, believed only as far as its types go: the process has read a stranger's bytes."""
    reply: dict[str, Any] = json.loads(line)
    if reply["name"] != name:
        raise ValueError(f"an answer about {reply['name']!r}")
    return PictureInspection(
        name=name,
        format=None if reply["format"] is None else str(reply["format"]),
        width=None if reply["width"] is None else int(reply["width"]),
        height=None if reply["height"] is None else int(reply["height"]),
        faults=tuple(
            Fault(where=name, message=str(fault["message"]), hint=str(fault["hint"])) for fault in reply["faults"]
        ),
        notes=tuple(str(note) for note in reply["notes"]),
    )
