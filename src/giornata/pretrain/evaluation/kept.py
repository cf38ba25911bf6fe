"""Evaluations in the storage of their run: a report of each, and the sheet of samples.

    evaluations/
        step-00000040-phase-0.json   the report
        step-00000040-phase-0.png    the sheet, where one was drawn

Needs no Ray: a node that follows a run reads the sheets.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from giornata.pretrain.data.manifest import json_bytes
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.run_state.committed import CommittedCheckpoint, name_of

FOLDER = "evaluations"
NUMBERS = ("validation_loss", "clip_score", "clip_score_of_real", "cmmd", "fid")
SHEET = "samples_png"


def keep(run: Storage, checkpoint: CommittedCheckpoint, report: Mapping[str, Any]) -> None:
    """Keep a report, with the sheet that it names. Raises OSError."""
    told = {name: each for name, each in report.items() if name != SHEET}
    sheet = Path(report[SHEET]) if SHEET in report else None
    if sheet is not None:
        told["samples"] = f"{checkpoint.name}.png"
        run.put(sheet, f"{FOLDER}/{told['samples']}")
    # The report last: it says that all is there.
    run.write(f"{FOLDER}/{checkpoint.name}.json", json_bytes(told))


def numbers_of(report: Mapping[str, Any]) -> dict[str, float]:
    """The measured numbers, named `evaluation/…`."""
    return {f"evaluation/{name}": float(report[name]) for name in NUMBERS if report.get(name) is not None}


def newest_kept(run: Storage) -> tuple[int, int]:
    """(step, phase) of the newest checkpoint that was evaluated; (-1, 0) when none was."""
    found = [(report["step"], name) for name, report in _reports(run)]
    step, name = max(found, default=(-1, name_of(0, 0)))
    return step, int(name.rpartition("-")[2])


def kept_evaluations(run: Storage) -> list[tuple[int, dict[str, float], str]]:
    """(step, numbers, name of the checkpoint) of all evaluations, in the order of their steps."""
    found = ((report["step"], numbers_of(report), name) for name, report in _reports(run))
    return sorted(found, key=lambda each: each[0])


def samples_of(run: Storage, name: str) -> bytes | None:
    """The PNG with the samples of a checkpoint; None where there are none."""
    path = f"{FOLDER}/{name}.png"
    return run.read(path) if run.exists(path) else None


def _reports(run: Storage) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in run.names(FOLDER):
        if path.endswith(".json"):
            yield Path(path).stem, json.loads(run.read(path))
