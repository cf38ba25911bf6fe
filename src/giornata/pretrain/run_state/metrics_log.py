"""The metrics of a run, whatever number of attempts it took: no step twice, none missing.

    metrics/steps-00000041.jsonl    one JSON object per step, from step 41; `time_s` is when the step ended

The first trainer writes them about every second, and always before the checkpoint that they led to. A file begins
after every checkpoint, so that an attempt can drop the files of steps that it trains again.
"""

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.storage import Storage

METRICS = "metrics"
EVERY_S = 1.0
ROWS_A_FILE = 2000
"""Bounds what is written again every second."""
Row = Mapping[str, float]


class MetricsLog:
    """Written by the first trainer alone, which alone adds rows. `fence` is asked before rows are written, and raises
    InvalidInput when another command owns the storage by now."""

    def __init__(self, run: Storage, *, every_s: float = EVERY_S, fence: Callable[[], None] = lambda: None) -> None:
        self._run, self._every_s, self._fence = run, every_s, fence
        self._files: dict[str, list[str]] = {}
        self._open: list[str] | None = None
        self._lock, self._writing, self._over = threading.Lock(), threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="pretrain-metrics", daemon=True)

    def add(self, row: Row) -> None:
        """Add the row of one step. The row has `step`."""
        # JSON has neither NaN nor infinity
        finite = {name: each if math.isfinite(each) else None for name, each in row.items()}
        line = json.dumps(finite, sort_keys=True) + "\n"
        with self._lock:
            if self._open is None or len(self._open) >= ROWS_A_FILE:
                self._open = []
            self._open.append(line)
            self._files[f"{METRICS}/steps-{int(row['step']) - len(self._open) + 1:08d}.jsonl"] = self._open
        if self._thread.ident is None and not self._over.is_set():  # once: of another owner it has ended
            self._thread.start()

    def cut(self) -> Callable[[], None]:
        """A checkpoint is begun: the next row begins a file. What is returned writes all rows so far, and raises
        OSError; rows that it could not write are written later."""
        with self._lock:
            self._open = None
        return self.flush

    def flush(self) -> None:
        """Write the rows that are new. Raises OSError."""
        with self._writing:
            with self._lock:
                changed = {name: (lines, len(lines)) for name, lines in self._files.items()}
            for name, (lines, count) in changed.items():
                self._run.write(name, "".join(lines[:count]).encode())
                with self._lock:
                    if len(lines) == count:
                        del self._files[name]

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(self._every_s):
            if not self._files:
                continue
            try:
                self._fence()
                self.flush()
            except OSError:  # the checkpoint writes them, or tells why it cannot
                continue
            except InvalidInput:  # of another owner, which the next checkpoint tells
                return


def drop_after(run: Storage, step: int) -> None:
    """Remove files that begin after this step: an attempt wrote them whose last steps are trained again."""
    for name in run.names(METRICS):
        if int(name.rpartition("-")[2].removesuffix(".jsonl")) > step:
            run.remove(name)


def metrics_of(run: Storage) -> Iterator[dict[str, float]]:
    """Rows of all steps, in order, whichever attempt trained them."""
    for name in run.names(METRICS):
        for line in run.read(name).decode().splitlines():
            yield json.loads(line)
