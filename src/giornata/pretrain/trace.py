"""Which rows every step trained, written down by each trainer while it trains: the proof, apart from the ledger.

    trace/<from>-<when>-<rank>.jsonl   {"from": step, "ms", "pid"}, then {"step", "phase", "uses"} for each step

Lines of an attempt count up to the step from which the next attempt went on: what came after was trained again.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
class Traced:
    """All attempts together. `steps` are what became of the weights: (step, phase, portion, row); `undone` uses were
    trained by an attempt that was lost before its next checkpoint."""

    steps: Sequence[tuple[int, int, int, int]]
    undone: int
    attempts: int

    def until(self, step: int) -> Counter[tuple[int, int, int]]:
        """How often each (phase, portion, row) was trained up to a step."""
        return Counter((phase, number, row) for at, phase, number, row in self.steps if at <= step)


def read_traces(folder: Path) -> Traced:
    """What all trainers of all attempts wrote."""
    attempts: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        head, *lines = _whole_lines(path)
        attempts.setdefault((head["ms"], head["from"]), []).extend(lines)
    steps: list[tuple[int, int, int, int]] = []
    undone, kept_until = 0, math.inf
    for (_, began_at), lines in sorted(attempts.items(), reverse=True):
        for line in lines:
            if line["step"] > kept_until:
                undone += len(line["uses"])
            else:
                steps += [(line["step"], line["phase"], number, row) for number, row in line["uses"]]
        kept_until = min(kept_until, began_at)
    return Traced(steps=steps, undone=undone, attempts=len(attempts))


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """A last line may be cut."""
    found = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        found.append(json.loads(line))
    return found
