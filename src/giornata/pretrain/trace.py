"""Which rows every step trained, written down by each trainer while it trains: the proof, apart from the ledger.

    trace/<from>-<when>-<rank>.jsonl   {"from": step, "ms", "pid"}, then {"step", "phase", "uses"} for each step

giornata.pretrain.use_counts reads it.
"""

import json
import os
from collections.abc import Mapping, Sequence
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
