"""One run at Weights & Biases for a whole job, whatever number of attempts the job takes.

The package `wandb` does all of it in a process of its own (giornata.tracking.wandb_process). The package keeps
threads, a service and exit handlers, and waits long for its server: none of that may hold a trainer up. Rows go to
the process through a file, so that no caller ever waits.

The run's id stays the same. The process skips the steps that W&B has, so that each step is there once: an attempt
trains a step again only with the same result. What W&B lacks is sent first.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from giornata.tracking.wandb_process import PNG

PROCESS = (sys.executable, "-m", "giornata.tracking.wandb_process")
FILE_NAME, FOLDER = "wandb-offline-run.zip", "wandb-run"
WRITE_S, UPLOAD_S, POLL_S = 180.0, 60.0, 0.2
RETRY_S, ROWS_PER_S = 300.0, 500.0
LOST = "Fatal error while uploading data"
"""The package prints this when its server refuses rows; the process ends well nevertheless."""
HIDDEN = "[secret]"

Row = tuple[int, Mapping[str, float | bytes]]
"""(step, values), steps from 1. Bytes are a PNG file."""
Wait = Callable[["subprocess.Popen[bytes]", float], int | None]


class TrackerFailed(Exception):
    """A tracker did not take the curves, for a known reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbRun:
    """The description of a run for W&B: nothing of the machine, and no path."""

    id: str
    name: str
    project: str
    entity: str | None
    config: Mapping[str, Any]


def waiting(clock_s: Callable[[], float], is_over: Callable[[], bool]) -> Wait:
    """A function that waits for a process and returns the exit status. It ends the process and returns None after
    the timeout, or when `is_over` says so, which may raise."""

    def wait(process: "subprocess.Popen[bytes]", timeout_s: float) -> int | None:
        until_s = clock_s() + timeout_s
        try:
            while not is_over() and clock_s() < until_s:
                try:
                    return process.wait(timeout=POLL_S)
                except subprocess.TimeoutExpired:
                    continue
            return None
        finally:
            end(process)

    return wait


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process with all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


class WandbStream:
    """Sends rows while they come; without a key it writes a run that `wandb sync` takes.

    No call waits for W&B, except `finish`.
    """

    def __init__(
        self, run: WandbRun, directory: Path, api_key: SecretStr | None = None, base_url: str | None = None
    ) -> None:
        self._folder = directory / FOLDER
        self._folder.mkdir(exist_ok=True)
        self._rows_path = self._folder / ("online.jsonl" if api_key else "offline.jsonl")
        self._rows = self._rows_path.open("wb")
        self._key = "" if api_key is None else api_key.get_secret_value()
        environment = {"WANDB_API_KEY": self._key} | ({} if base_url is None else {"WANDB_BASE_URL": base_url})
        self._order = {
            "mode": "online" if api_key else "offline",
            "folder": str(self._folder),
            "rows": str(self._rows_path),
            "run": asdict(run),
            "environment": environment,
        }
        self._ended_s: float | None = None
        self._told = False
        self._process = self._started()

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows in the order of their steps. Raises OSError."""
        for row in rows:
            self._rows.write(json.dumps(row, default=_png_in_json).encode() + b"\n")
        self._rows.flush()

    def failure(self) -> str | None:
        """Return the reason why the process ended; None while it works. A process that gave up sending is ended."""
        if self._process.poll() is None:
            if LOST not in self._said():
                return None
            end(self._process)
        return self._why(f"ended with {self._process.returncode}")

    def look_after(self, now_s: float, tell: Callable[[str], object]) -> None:
        """Tell why the process has ended, once, and start another RETRY_S later, which gets all rows."""
        if (failure := self.failure()) is None:
            self._ended_s = None
        elif self._ended_s is None:
            self._ended_s = now_s
            if not self._told:
                tell(f"the curves were not sent, but will be: {failure}")
            self._told = True
        elif now_s - self._ended_s >= RETRY_S:
            self._process = self._started()

    def finish(self, timeout_s: float, wait: Wait) -> None:
        """All rows were added. Raises TrackerFailed when the process does not take them."""
        self._rows.close()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        status = wait(self._process, timeout_s)
        if status != 0 or LOST in self._said():
            how = f"ended with {status}" if status is not None else f"took longer than {timeout_s:g} s"
            raise TrackerFailed(self._why(how))

    def abort(self) -> None:
        """End the process at once: what W&B lacks is sent by the next one."""
        end(self._process)
        self._rows.close()

    def _started(self) -> "subprocess.Popen[bytes]":
        """The order goes to the standard input: other users of the machine can read arguments."""
        with (self._folder / f"{self._order['mode']}.txt").open("wb") as output:
            process = subprocess.Popen(
                PROCESS,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                start_new_session=True,
                bufsize=0,
            )
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # the exit status and what the process printed tell more
                process.stdin.write(json.dumps(self._order).encode() + b"\n")
        return process

    def _said(self) -> str:
        return " ".join((self._folder / f"{self._order['mode']}.txt").read_text(errors="replace").split())

    def _why(self, how: str) -> str:
        said = self._said()[-300:]
        return f"wandb {how}: {said.replace(self._key, HIDDEN) if self._key else said}"


def _png_in_json(png: bytes) -> dict[str, str]:
    return {PNG: base64.b64encode(png).decode()}


def deliver(run: WandbRun, rows: Sequence[Row], directory: Path, *, wait: Wait) -> Path:
    """Write the whole run and pack it: unpacked, `wandb sync` takes its folder. Raises TrackerFailed."""
    stream = WandbStream(run, directory)
    stream.add(rows)
    stream.finish(WRITE_S + len(rows) / ROWS_PER_S, wait)
    records = sorted((directory / FOLDER).glob("wandb/offline-run-*/*.wandb"))
    if len(records) != 1:
        raise TrackerFailed(f"wandb wrote {len(records)} runs instead of one")
    packed, inside = directory / FILE_NAME, f"offline-run-20000101_000000-{run.id}"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir(f"{inside}/files")
        archive.write(records[0], f"{inside}/run-{run.id}.wandb")
        media = records[0].parent / "files" / "media"
        for each in sorted(path for path in media.rglob("*") if path.is_file()):
            archive.write(each, f"{inside}/files/{each.relative_to(media.parent)}")
    return packed


def upload(
    run: WandbRun,
    rows: Sequence[Row],
    directory: Path,
    api_key: SecretStr,
    *,
    wait: Wait,
    base_url: str | None = None,
) -> None:
    """Send the rows that W&B lacks. Raises TrackerFailed."""
    stream = WandbStream(run, directory, api_key, base_url)
    stream.add(rows)
    try:
        stream.finish(UPLOAD_S, wait)
    except TrackerFailed as failure:
        raise TrackerFailed(f"{failure}; {FILE_NAME} is among the results, and `wandb sync` takes it") from None
