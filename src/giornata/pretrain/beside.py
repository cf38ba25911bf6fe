"""Evaluates checkpoints beside the run that makes them: one at a time, and never in its way.

It lives with the command that trains, in a thread that only waits for a process. The newest checkpoint that is due
comes first; those that became due while another was evaluated are left out. What fails, and what takes longer than
`evaluate.timeout_s`, is told and no more. By default the process takes the processors that nobody else wants, and no
GPU: where the command runs, the GPUs are those of trainers.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from giornata.domain.errors import GiornataError
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.evaluations import keep, kept, newest_kept, numbers_of
from giornata.pretrain.training.committed import Committed, committed
from giornata.protocol.pretraining import PretrainConfig

POLL_S = 0.2
LEAVE_S = 5.0
"""How long the end of the run waits for an evaluation that was told to stop."""
LAST_CHARS = 300
Report = dict[str, Any]
Judge = Callable[[Committed, Path, threading.Event], Report]
"""(checkpoint, an empty folder, set when it shall stop) to the report of giornata.pretrain.evaluate. Raises
GiornataError or OSError."""
Tell = Callable[[dict[str, Any]], object]


def due(config: PretrainConfig, checkpoint: Committed, phase_before: int) -> bool:
    """Whether it is to be evaluated: every `evaluate.checkpoints`-th of those that are made by the number of steps,
    and each with which a phase is complete. `phase_before` is that of the checkpoint before."""
    every = config.evaluate.checkpoints * config.train.checkpoint_steps
    return bool(every) and (checkpoint.phase != phase_before or checkpoint.step % every == 0)


class Evaluations:
    """Of one run, in a thread. It is called with what the run tells, and returns at once."""

    def __init__(self, config: PretrainConfig, run: Storage, judge: Judge, tell: Tell) -> None:
        self._config, self._run, self._judge, self._tell = config, run, judge, tell
        self._wake, self._stop, self._last = threading.Event(), threading.Event(), threading.Event()
        self._seen: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._work, name="pretrain-evaluations", daemon=True)
        self._thread.start()

    def __call__(self, message: dict[str, Any]) -> None:
        """A checkpoint wakes it; everything else is nothing to it."""
        if message["event"] == "checkpoint":
            self._wake.set()

    def finish(self, wanted: threading.Event, *, within_s: float) -> None:
        """Wait for the evaluation of what is due, until `wanted` is set or the time is over."""
        self._last.set()
        self._wake.set()
        until_s = time.monotonic() + within_s
        while self._thread.is_alive() and not wanted.is_set() and time.monotonic() < until_s:
            self._thread.join(POLL_S)

    def close(self, *, within_s: float = LEAVE_S) -> None:
        """Stop what is under way; what does not stop is left behind."""
        self._stop.set()
        self._wake.set()
        self._thread.join(within_s)

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            last = self._last.is_set()  # asked before it is looked, so that nothing due is passed over
            if self._stop.is_set():
                return
            try:
                if (chosen := self._chosen()) is not None:
                    self._evaluate(chosen)
            except Exception as error:  # noqa: BLE001 - a supervisor: whatever it is, the run goes on
                self._failed("what is due", error)
            if last:
                return

    def _chosen(self) -> Committed | None:
        """The newest that is due and was not evaluated. What else is due is told and left out."""
        if self._seen is None:
            self._seen = newest_kept(self._run)
        seen, wanted = self._seen, list[Committed]()
        phase_before = seen[1]
        for each in sorted(committed(self._run, warn=False), key=lambda each: (each.step, each.phase)):
            if (each.step, each.phase) > seen:
                if due(self._config, each, phase_before) and not kept(self._run, each.name):
                    wanted.append(each)
                self._seen = each.step, each.phase
            phase_before = each.phase
        for each in wanted[:-1]:
            self._say(each, skipped="a newer one was due as well")
        return wanted[-1] if wanted else None

    def _evaluate(self, checkpoint: Committed) -> None:
        with tempfile.TemporaryDirectory(prefix="giornata-evaluation-") as folder:
            try:
                report = self._judge(checkpoint, Path(folder), self._stop)
                if self._stop.is_set():
                    return
                keep(self._run, checkpoint, report)
            except (GiornataError, OSError) as error:
                self._failed(checkpoint.name, error)
                return
        self._say(checkpoint, numbers=numbers_of(report))

    def _failed(self, name: str, error: Exception) -> None:
        if not self._stop.is_set():
            words = str(error) or type(error).__name__
            self._tell({"event": "evaluation", "checkpoint": name, "failed": words})

    def _say(self, checkpoint: Committed, **told: Any) -> None:
        self._tell({"event": "evaluation", "checkpoint": checkpoint.name, "step": checkpoint.step, **told})


@contextmanager
def evaluating(
    config: PretrainConfig, run: Storage, tell: Tell, judge: Judge | None = None
) -> Iterator[Evaluations | None]:
    """Within, checkpoints are evaluated; None where the configuration wants none."""
    if not config.evaluate.checkpoints:
        yield None
        return
    evaluations = Evaluations(config, run, judge or process_of(config), tell)
    try:
        yield evaluations
    finally:
        evaluations.close()


def process_of(config: PretrainConfig) -> Judge:
    """In a process of its own. Raises GiornataError with its last words, and when it takes too long."""
    evaluate = config.evaluate
    words = ["--config-json", json.dumps(config.to_json()), "--rows", str(evaluate.rows), "--beside"]
    words += [] if evaluate.clip is None else ["--clip", evaluate.clip]
    words += [] if evaluate.inception is None else ["--inception", evaluate.inception]

    def judge(checkpoint: Committed, folder: Path, stop: threading.Event) -> Report:
        report, log = folder / "report.json", folder / "log"
        command = [sys.executable, "-m", "giornata.pretrain.evaluate", *words, "--checkpoint", checkpoint.name]
        command += ["--out", str(folder), "--report", str(report)]
        ended(command, log, stop, timeout_s=evaluate.timeout_s)
        told: Report = json.loads(report.read_bytes()) if report.is_file() else {}
        why = None if stop.is_set() else why_not(told, log)
        if why is not None:
            raise GiornataError(why)
        return told

    return judge


def ended(
    command: list[str],
    log: Path,
    stop: threading.Event,
    *,
    timeout_s: float,
    clock_s: Callable[[], float] = time.monotonic,
) -> None:
    """Run a command until it ends, or until `stop` is set. Raises GiornataError when it takes too long; it is killed
    then. Its standard input is a pipe that ends with this process."""
    until_s = clock_s() + timeout_s
    with log.open("wb") as stream:
        # A group of its own: Ctrl-C is for the run, which stops it in its own time.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None and not stop.wait(POLL_S):
                if clock_s() > until_s:
                    raise GiornataError(f"it took more than evaluate.timeout_s, {timeout_s:g} s, and was ended")
        finally:
            process.kill()
            process.communicate()


def why_not(told: Report, log: Path) -> str | None:
    """Why the program made no report: as it says or, where it could say nothing, its last words."""
    if "faults" in told:
        return "; ".join(f"{each['where']} {each['message']}" for each in told["faults"])
    if "error" in told:
        return str(told["error"])
    return None if told else _last_words(log)


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][-LAST_CHARS:] if lines else "it ended without a word"
