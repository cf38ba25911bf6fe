"""A whole run for Weights & Biases: always as a file, and sent to W&B when there is a key.

Both are done by the package `wandb`, in a process of its own (giornata.diffusion.wandb_process), which is ended when
it takes too long: the network is nobody's to rely on, and the package keeps threads, a service and handlers.

The run's id is the same whatever number of attempts it took, and it has each step once: the curves travel with the
checkpoints. Should two attempts send them, both send the same lines to the same places of the same run.
"""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

PROCESS = (sys.executable, "-m", "giornata.diffusion.wandb_process")
FILE_NAME, FOLDER = "wandb-offline-run.zip", "wandb-run"
WRITE_S, UPLOAD_S, POLL_S = 180.0, 60.0, 0.2
MOST_ROWS = 20_000
HIDDEN = "[secret]"

Curve = Mapping[str, float]
Wait = Callable[["subprocess.Popen[bytes]", float], int | None]


class TrackerFailed(Exception):
    """What was to be done for a tracker cannot be done, for a reason that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbRun:
    """What W&B gets to know: nothing of the machine, and no path on it. `rows` are (step, values), steps from 1."""

    id: str
    name: str
    project: str
    entity: str | None
    config: Mapping[str, Any]
    rows: Sequence[tuple[int, Curve]]

    @property
    def folder_name(self) -> str:
        """As W&B names the folder of an offline run, but for its time."""
        return f"offline-run-20000101_000000-{self.id}"


def waiting(clock_s: Callable[[], float], is_over: Callable[[], bool]) -> Wait:
    """Waits for a process and returns its exit status; None when it had to be ended, for it took too long or it was
    over before: `is_over` is asked again and again, and may raise."""

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
            process.kill()
            process.wait()

    return wait


def thinned(rows: Sequence[tuple[int, Curve]], *, of: int = 0) -> list[tuple[int, Curve]]:
    """(step, values) as a run has them, steps from 1: of very long ones every so manieth, the first and the last.
    Where these are the first `of` so many steps, every row but the last is at the place that it will have in the
    end."""
    stride = max(1, -(-max(of, len(rows)) // MOST_ROWS))
    ends = {rows[0][0], rows[-1][0]} if rows else set()
    return [(step, values) for step, values in rows if step % stride == 0 or step in ends]


def deliver(run: WandbRun, directory: Path, *, wait: Wait) -> Path:
    """Write the run and pack it: unpacked, `wandb sync` takes its folder. Raises TrackerFailed."""
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    order = {"do": "write", "folder": str(folder), "run": asdict(run)}
    _carried_out(order, folder, timeout_s=WRITE_S, wait=wait)
    records = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    if len(records) != 1:
        raise TrackerFailed(f"wandb wrote {len(records)} runs instead of one")
    packed, inside = directory / FILE_NAME, folder / run.folder_name
    (inside / "files").mkdir(parents=True, exist_ok=True)
    records[0].replace(inside / f"run-{run.id}.wandb")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(inside / "files", f"{run.folder_name}/files")
        archive.write(inside / f"run-{run.id}.wandb", f"{run.folder_name}/run-{run.id}.wandb")
    return packed


def upload(run: WandbRun, directory: Path, api_key: SecretStr, *, wait: Wait, base_url: str | None = None) -> None:
    """Send what `deliver` wrote: to `base_url`, to the W&B server of this site, or to W&B's own. Raises
    TrackerFailed."""
    folder, key = directory / FOLDER, api_key.get_secret_value()
    path = folder / run.folder_name
    try:
        order = {"do": "sync", "path": str(path), "api_key": key, "base_url": base_url}
        said = _carried_out(order, folder, timeout_s=UPLOAD_S, wait=wait)
        # wandb also ends with 0 when its server refuses the key; only a run that has arrived gets this mark.
        if not (path / f"run-{run.id}.wandb.synced").exists():
            raise TrackerFailed(f"wandb could not send the run: {said}")
    except TrackerFailed as failure:
        why = str(failure).replace(key, HIDDEN)
        raise TrackerFailed(f"{why}; {FILE_NAME} is among the results, and `wandb sync` takes it") from None


def _carried_out(order: Mapping[str, Any], folder: Path, *, timeout_s: float, wait: Wait) -> str:
    """Let the process do it, and return the end of what it said. Its order goes to its standard input: others on the
    machine can read arguments."""
    said = folder / "said.txt"
    with said.open("wb") as output:
        process = subprocess.Popen(PROCESS, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=folder)
        _tell(process, order)
        status = wait(process, timeout_s)
    last = " ".join(said.read_text(errors="replace").split())[-300:]
    if status != 0:
        how = f"ended with {status}" if status is not None else f"took longer than {timeout_s:g} s"
        raise TrackerFailed(f"wandb {how}: {last}")
    return last


def _tell(process: "subprocess.Popen[bytes]", order: Mapping[str, Any]) -> None:
    if process.stdin is None:
        raise TrackerFailed("the process for wandb has no standard input")
    try:
        with process.stdin as stream:
            stream.write(json.dumps(order).encode())
    except BrokenPipeError:  # its exit status and what it said tell more
        return
