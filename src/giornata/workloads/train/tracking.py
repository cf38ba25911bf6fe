"""The curves of a whole job in the formats of trackers, whatever number of attempts it took.

What an attempt measured dies with it, and results of attempts before the last are dropped. So the losses travel in
the checkpoints, and the last attempt writes the file of the whole job: its bytes show no seam either. The time axis
counts steps, for the hours at which nodes came and went are nobody's result; speeds are with the job's metrics.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from giornata.diffusion.schedule import learning_rate_factor
from giornata.engine.workload import Reporter
from giornata.protocol.specs import TrainSpec

LOSSES = "log.loss"
"""The tensor of a checkpoint: loss_S, float32, of all steps that are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """One value per step, from step 1, by name."""

    values: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A tracker's file."""

    name: str
    path: Path


Tracker = Callable[[Curves, Path], Written]
"""Writes the curves of a job into a directory. Another tracker is one more entry in TRACKERS."""


def write_tensorboard(curves: Curves, directory: Path) -> Written:
    """TensorBoard's event file: `tensorboard --logdir` of the folder that it was downloaded to."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter

    name = "events.out.tfevents.0.giornata"
    path = directory / name
    path.unlink(missing_ok=True)
    writer = RecordWriter(str(path))
    writer.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
    for step, row in enumerate(zip(*curves.values.values(), strict=True), start=1):
        named = zip(curves.values, row, strict=True)
        summary = Summary(value=[Summary.Value(tag=f"train/{tag}", simple_value=value) for tag, value in named])
        writer.write(Event(wall_time=float(step), step=step, summary=summary).SerializeToString())
    writer.close()
    return Written(name=name, path=path)


TRACKERS: Mapping[str, Tracker] = MappingProxyType({"tensorboard": write_tensorboard})


def losses_to_keep(spec: TrainSpec, losses: Sequence[float]) -> dict[str, torch.Tensor]:
    """What goes into a checkpoint; nothing in jobs that report to no tracker."""
    return {LOSSES: torch.tensor(losses, dtype=torch.float32)} if spec.report_to else {}


def report(spec: TrainSpec, losses: Sequence[float], directory: Path, reporter: Reporter) -> None:
    """Hand over a file for each tracker that the spec names."""
    rates = [spec.learning_rate * learning_rate_factor(spec, step) for step in range(len(losses))]
    curves = Curves(values={"loss": losses, "learning_rate": rates})
    for tracker in dict.fromkeys(spec.report_to):
        written = TRACKERS[tracker](curves, directory)
        reporter.artifact(written.name, written.path)
