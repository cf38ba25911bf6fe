"""Work of pre-training runs in a process of its own: the command line never loads Ray, pyarrow or torch.

The program gets `--report FILE` first. It writes progress as JSON objects, one a line, on standard output, and into
the file its report, `{"faults": […]}` or `{"error": "…"}`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from giornata.domain.errors import Fault, GiornataError, InvalidInput, install_hint

STOP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
STOP_WITHIN_S = 30.0
_MISSING = "No module named"


def run_program(
    module: str, words: Sequence[str], *, progress: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    """Run a program and return its report.

    Raises InvalidInput with the faults in the report, GiornataError when the program fails in another way.
    """
    with tempfile.TemporaryDirectory(prefix="giornata-") as folder:
        report, errors = Path(folder) / "report.json", Path(folder) / "errors"
        with errors.open("wb") as stream:
            status = _run([sys.executable, "-m", module, "--report", str(report), *words], stream.fileno(), progress)
        if not report.is_file():
            raise _failed(module, status, errors.read_text(encoding="utf-8", errors="replace"))
        told: dict[str, Any] = json.loads(report.read_bytes())
    if "faults" in told:
        raise InvalidInput(Fault(**each) for each in told["faults"])
    if "error" in told:
        raise GiornataError(told["error"])
    return told


def _run(command: Sequence[str], errors: int, progress: Callable[[Mapping[str, Any]], None]) -> int:
    with _ending() as ending:
        # In a session of its own: Ctrl-C reaches it once and from here, so that it takes down its Ray undisturbed.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8", start_new_session=True
        )
        ending.of(process)
        try:
            for line in process.stdout or ():
                if line.startswith("{"):
                    progress(json.loads(line))
        except BaseException:
            ending.ask()
            raise
        finally:
            status = process.wait()
            ending.leave_nothing()
    return status


class _Ending:
    """Ends a program when a signal asks for it. The first signal asks the program to end; a second one, or
    STOP_WITHIN_S, kills it with all that it has begun, such as a Ray. Signals raise nothing before the program has
    ended: an exception meanwhile would leave it behind."""

    def __init__(self) -> None:
        self.asked = False
        self.deaf_to = set[int]()
        self._process: subprocess.Popen[str] | None = None
        self._patience: threading.Timer | None = None

    def __call__(self, number: int, _: FrameType | None) -> None:
        if number in self.deaf_to:
            return
        again, self.asked = self.asked, True
        if again:
            self._kill()
        else:
            self.ask()

    def of(self, process: "subprocess.Popen[str]") -> None:
        """Take the process of this program, which may have been asked to stop already."""
        self._process = process
        if self.asked:
            self.ask()

    def ask(self) -> None:
        """End the program, if it has begun."""
        if self._process is not None and self._patience is None:
            self._process.send_signal(signal.SIGINT)
            self._patience = threading.Timer(STOP_WITHIN_S, self._kill)
            self._patience.daemon = True
            self._patience.start()

    def leave_nothing(self) -> None:
        """The program has ended; what it left behind does too."""
        if self._patience is not None:
            self._patience.cancel()
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):  # they have ended
                os.killpg(self._process.pid, signal.SIGKILL)


@contextmanager
def _ending() -> Iterator[_Ending]:
    """SIGINT, SIGTERM and SIGHUP end the program that is begun within; then KeyboardInterrupt is raised."""
    ending = _Ending()
    before = {number: signal.signal(number, ending) for number in STOP}
    # What is ignored in the background of a script, or under nohup, programs would inherit. A handler they do not.
    ending.deaf_to = {number for number, handler in before.items() if handler is signal.SIG_IGN}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if ending.asked:
            raise KeyboardInterrupt


def _failed(module: str, status: int, said: str) -> GiornataError:
    words = [line for line in said.strip().splitlines() if line.strip()]
    last = words[-1] if words else f"{module} ended with status {status}"
    if _MISSING in last:
        return InvalidInput([Fault(where="installation", message=last, hint=install_hint("pretrain"))])
    return GiornataError(last)
