"""What checkpoints of a run were found to do, in its storage: of evaluations beside the run.

evaluations/step-00000040-phase-0.json   the report of giornata.pretrain.evaluate
evaluations/step-00000040-phase-0.png    samples of train.validation_prompts, where there are any
tensorboard/events.out.tfevents.evaluation-00000040.giornata   both for TensorBoard, with tracking.tensorboard
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.training.committed import Committed, name_of
from giornata.pretrain.training.metrics_log import TENSORBOARD

FOLDER = "evaluations"
NUMBERS = ("validation_loss", "clip_score", "clip_score_of_real", "cmmd", "fid")
SHEET = "samples_png"


def keep(run: Storage, checkpoint: Committed, report: Mapping[str, Any], *, tensorboard: bool) -> None:
    """Keep a report, with the sheet that it names. Raises OSError."""
    told = {name: each for name, each in report.items() if name != SHEET}
    sheet = Path(report[SHEET]) if SHEET in report else None
    if sheet is not None:
        told["samples"] = f"{checkpoint.name}.png"
        run.put(sheet, f"{FOLDER}/{told['samples']}")
    if tensorboard:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "events"
            _write_events(path, checkpoint.step, numbers_of(report), sheet)
            run.put(path, f"{TENSORBOARD}/events.out.tfevents.evaluation-{checkpoint.step:08d}.giornata")
    # The report last: it says that all is there.
    run.write(f"{FOLDER}/{checkpoint.name}.json", (json.dumps(told, indent=1, sort_keys=True) + "\n").encode())


def numbers_of(report: Mapping[str, Any]) -> dict[str, float]:
    """`evaluation/…` of what was measured."""
    return {f"evaluation/{name}": float(report[name]) for name in NUMBERS if report.get(name) is not None}


def kept(run: Storage, name: str) -> bool:
    """Whether the checkpoint of this name was evaluated."""
    return run.exists(f"{FOLDER}/{name}.json")


def newest_kept(run: Storage) -> tuple[int, int]:
    """(step, phase) of the newest checkpoint that was evaluated; (-1, 0) when none was."""
    found = [(report["step"], name) for name, report in _reports(run)]
    step, name = max(found, default=(-1, name_of(0, 0)))
    return step, int(name.rpartition("-")[2])


def evaluated(run: Storage) -> list[tuple[int, dict[str, float]]]:
    """(step, numbers) of all of them, in order."""
    return sorted(((report["step"], numbers_of(report)) for _, report in _reports(run)), key=lambda each: each[0])


def _reports(run: Storage) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in run.names(FOLDER):
        if path.endswith(".json"):
            yield Path(path).stem, json.loads(run.read(path))


def _write_events(path: Path, step: int, numbers: Mapping[str, float], sheet: Path | None) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter

    values = [Summary.Value(tag=tag, simple_value=each) for tag, each in numbers.items()]
    if sheet is not None:
        with Image.open(sheet) as picture:
            width, height = picture.size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=sheet.read_bytes())
        values.append(Summary.Value(tag="evaluation/samples", image=image))
    writer = RecordWriter(str(path))
    writer.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
    writer.write(Event(wall_time=float(step), step=step, summary=Summary(value=values)).SerializeToString())
    writer.close()
