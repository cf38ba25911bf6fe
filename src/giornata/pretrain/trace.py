"""Which rows every step trained, written down by each trainer while it trains: the proof, apart from the ledger.

    trace/<from>-<when>-<rank>.jsonl   {"from": step, "ms", "pid"}, then {"step", "phase", "uses"} for each step

Lines of an attempt count up to the step from which the next attempt went on: what came after was trained again.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from giornata.pretrain.feeding.ledger import Use

FOLDER = "trace"


class Trace:
    """One trainer's file. A line is the operating system's when its step ends: a killed process loses none."""

    def __init__(self, folder: Path, *, from_step: int, now_ms: int, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = (folder / f"{from_step:08d}-{now_ms}-{rank}.jsonl").open("w", encoding="utf-8")
        self._write({"from": from_step, "ms": now_ms, "pid": os.getpid()})

    def __call__(self, phase: int, step: int, uses: Sequence[Use]) -> None:
        self._write({"step": step, "phase": phase, "uses": list(uses)})

    def close(self) -> None:
        """No more lines."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedAttempt:
    """What the trainers of one attempt wrote. The next attempt went on from the step `kept_until`: what came after it
    here is undone."""

    files: Sequence[Path]
    kept_until: float

    def lines(self) -> Iterator[Mapping[str, Any]]:
        """Of the steps, one trainer after the other."""
        for file in self.files:
            yield from islice(_whole_lines(file), 1, None)


def read_traces(folder: Path) -> list[TracedAttempt]:
    """Of all attempts, the newest first."""
    attempts: dict[tuple[int, int], list[Path]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        if head := next(_whole_lines(path), None):  # who was killed at once has written nothing
            attempts.setdefault((head["ms"], head["from"]), []).append(path)
    found, kept_until = list[TracedAttempt](), math.inf
    for (_, began_at), files in sorted(attempts.items(), reverse=True):
        found.append(TracedAttempt(files=files, kept_until=kept_until))
        kept_until = min(kept_until, began_at)
    return found


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """A last line may be cut."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
