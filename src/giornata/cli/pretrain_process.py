"""Work of pre-training runs in a process of its own: the command line never loads Ray, pyarrow or torch.

The program gets `--report FILE` first. It writes progress as JSON objects, one a line, on standard output, and into
the file its report, `{"faults": […]}` or `{"error": "…"}`.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault, GiornataError, InvalidInput

STOP_WITHIN_S = 30.0
_MISSING = "No module named"


def run_program(
    module: str, words: Sequence[str], *, progress: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    """Its report. Raises InvalidInput with the faults in that, GiornataError when it fails in another way."""
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
    # In a session of its own: Ctrl-C reaches it once and from here, so that it takes down its Ray undisturbed.
    with _interruptible():
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8", start_new_session=True
        )
    try:
        for line in process.stdout or ():
            if line.startswith("{"):
                progress(json.loads(line))
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


@contextmanager
def _interruptible() -> Iterator[None]:
    """Processes that are started here hear SIGINT, also when whoever started this one, in the background of a script,
    has it ignore that: it is inherited."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _failed(module: str, status: int, said: str) -> GiornataError:
    words = [line for line in said.strip().splitlines() if line.strip()]
    last = words[-1] if words else f"{module} ended with status {status}"
    if _MISSING in last:
        return InvalidInput([Fault(where="installation", message=last, hint="pip install 'giornata[pretrain]'")])
    return GiornataError(last)
