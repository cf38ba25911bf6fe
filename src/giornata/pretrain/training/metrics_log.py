"""The curves of a run, whatever number of attempts it took: no step twice, none missing.

Rows are written with the checkpoint that they led to, one file for the steps between two checkpoints. What an attempt
measured after its last checkpoint is trained again, and measured again.

    metrics/steps-00000041.jsonl                     one JSON object per step, from step 41
    tensorboard/events.out.tfevents.00000041.giornata  the same for TensorBoard, whose folder this is
"""

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from giornata.pretrain.data.storage import Storage

METRICS, TENSORBOARD = "metrics", "tensorboard"
Row = Mapping[str, float]


class MetricsLog:
    """By the first trainer alone. Nothing of the run's is read."""

    def __init__(self, run: Storage, *, tensorboard: bool) -> None:
        self._run, self._tensorboard = run, tensorboard
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Of one step: has `step`."""
        self._rows.append(dict(row))

    def taken(self) -> "Segment":
        """The rows since the last call, to be written with a checkpoint."""
        rows, self._rows = self._rows, []
        return Segment(self._run, rows, tensorboard=self._tensorboard)

    def put_back(self, segment: "Segment") -> None:
        """The checkpoint was not written: these rows go with the next."""
        self._rows = [*segment.rows, *self._rows]


class Segment:
    """Rows between two checkpoints."""

    def __init__(self, run: Storage, rows: Sequence[Row], *, tensorboard: bool) -> None:
        self.rows, self._run, self._tensorboard = rows, run, tensorboard

    def write(self) -> None:
        """Raises OSError."""
        if not self.rows:
            return
        first = int(self.rows[0]["step"])
        lines = [json.dumps(_finite(row), sort_keys=True) for row in self.rows]
        self._run.write(f"{METRICS}/steps-{first:08d}.jsonl", ("\n".join(lines) + "\n").encode())
        if self._tensorboard:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "events"
                write_events(path, self.rows)
                self._run.put(path, f"{TENSORBOARD}/events.out.tfevents.{first:08d}.giornata")


def drop_after(run: Storage, step: int) -> None:
    """Forget segments that begin after this step: of an attempt whose checkpoints are not used."""
    for folder in (METRICS, TENSORBOARD):
        for name in run.names(folder):
            digits = [part for part in name.replace("-", ".").split(".") if part.isdigit()]
            if digits and int(digits[-1]) > step:
                run.remove(name)


def metrics_of(run: Storage) -> Iterator[dict[str, float]]:
    """All steps of all attempts, in order."""
    for name in run.names(METRICS):
        for line in run.read(name).decode().splitlines():
            yield json.loads(line)


def write_events(path: Path, rows: Sequence[Row]) -> None:
    """A file for TensorBoard."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter

    writer = RecordWriter(str(path))
    writer.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
    for row in rows:
        step = int(row["step"])
        values = [Summary.Value(tag=tag, simple_value=each) for tag, each in row.items() if tag != "step"]
        writer.write(Event(wall_time=float(step), step=step, summary=Summary(value=values)).SerializeToString())
    writer.close()


def _finite(row: Row) -> dict[str, float | None]:
    """JSON knows no NaN."""
    return {name: each if math.isfinite(each) else None for name, each in row.items()}
