"""The curves of a whole job in the formats of trackers, whatever number of attempts it took.

What an attempt measured dies with it, and results of attempts before the last are dropped. So the losses travel in
the checkpoints, and the last attempt writes the file of the whole job: its bytes show no seam either. The time axis
counts steps, for the hours at which nodes came and went are nobody's result; speeds are with the job's metrics.
"""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch
from pydantic import SecretStr

from giornata.diffusion.schedule import learning_rate_factor
from giornata.diffusion.wandb_run import TrackerFailed, deliver, upload, waiting
from giornata.engine.workload import Reporter, Stopped
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.held_out import validated_steps
from giornata.workloads.train.pace import Clock

FAILED = "tracker-failed"
LOSSES = "log.loss"
"""The tensor of a checkpoint: loss_S, float32, of all steps that are done."""
VALIDATED = "log.validation_loss"
"""The tensor of a checkpoint: the losses on held-out pictures so far, float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """One value per step, from step 1, by name; and those that only some steps have, `at` these."""

    values: Mapping[str, Sequence[float]]
    at: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, float]]:
        """What is known of each step, by name."""
        found = [dict(zip(self.values, row, strict=True)) for row in zip(*self.values.values(), strict=True)]
        for name, values in self.at.items():
            for step, value in values.items():
                found[step - 1][name] = value
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What trackers need besides the curves.

    `origin` are hashes of what the job was made from; `api_key` is the job's own, to be written nowhere. `attend` is
    called while something is waited for, and raises Stopped when the attempt is to end.
    """

    job: str
    directory: Path
    origin: Mapping[str, str] = field(default_factory=dict)
    api_key: SecretStr | None = None
    clock: Clock = time.monotonic
    attend: Callable[[], None] = lambda: None

    def wait(self, process: "subprocess.Popen[bytes]", timeout_s: float) -> int | None:
        """The exit status of a process; None when it had to be ended after `timeout_s`. Raises Stopped."""

        def is_over() -> bool:
            self.attend()
            return False

        return waiting(self.clock, is_over)(process, timeout_s)


Tracker = Callable[[TrainSpec, Curves, Errand, Reporter], None]
"""Hands over a file with the curves of a job, and sends them on, if it does that. Whatever it raises, but Stopped,
is an event of the job and nothing more. Another tracker is one more entry in TRACKERS."""


def write_tensorboard(spec: TrainSpec, curves: Curves, errand: Errand, reporter: Reporter) -> None:
    """TensorBoard's event file: `tensorboard --logdir` of the folder that it was downloaded to."""
    del spec
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter

    name = "events.out.tfevents.0.giornata"
    path = errand.directory / name
    path.unlink(missing_ok=True)
    writer = RecordWriter(str(path))
    writer.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
    for step, row in enumerate(curves.rows(), start=1):
        values = [Summary.Value(tag=f"train/{tag}", simple_value=value) for tag, value in row.items()]
        summary = Summary(value=values)
        writer.write(Event(wall_time=float(step), step=step, summary=summary).SerializeToString())
    writer.close()
    reporter.artifact(name, path)


def write_wandb(spec: TrainSpec, curves: Curves, errand: Errand, reporter: Reporter) -> None:
    """W&B's run of the whole job; see giornata.workloads.train.wandb_report."""
    from giornata.workloads.train.wandb_report import wandb_run

    run = wandb_run(spec, curves.values, at=curves.at, job=errand.job, origin=errand.origin)
    reporter.phase("reporting")
    written = deliver(run, errand.directory, wait=errand.wait)
    reporter.artifact(written.name, written)
    if errand.api_key is not None:
        upload(run, errand.directory, errand.api_key, wait=errand.wait)
    elif spec.wandb_api_key_secret is not None:
        raise TrackerFailed(f"the server could not hand out {spec.wandb_api_key_secret}: set the secret again")


TRACKERS: Mapping[str, Tracker] = MappingProxyType({"tensorboard": write_tensorboard, "wandb": write_wandb})


def losses_to_keep(
    spec: TrainSpec, losses: Sequence[float], validated: Sequence[float] = ()
) -> dict[str, torch.Tensor]:
    """What goes into a checkpoint: the losses in jobs that report to a tracker, and those on held-out pictures."""
    kept = {LOSSES: torch.tensor(losses, dtype=torch.float32)} if spec.report_to else {}
    return kept | ({VALIDATED: torch.tensor(validated, dtype=torch.float64)} if spec.validation_split else {})


def losses_before(spec: TrainSpec, step: int) -> dict[str, torch.Tensor]:
    """Tensors like those in the checkpoint of this step."""
    validated = sum(each <= step for each in validated_steps(spec))
    return losses_to_keep(spec, [0.0] * step, [0.0] * validated)


def curves_of(spec: TrainSpec, losses: Sequence[float], validated: Sequence[float] = ()) -> Curves:
    """Those of the steps that have these losses, the first ones of the job; of `validated`, as far as these go."""
    rates = [spec.learning_rate * learning_rate_factor(spec, step) for step in range(len(losses))]
    found = dict(zip(validated_steps(spec), validated, strict=False))
    at = {step: value for step, value in found.items() if step <= len(losses)}
    return Curves(values={"loss": losses, "learning_rate": rates}, at={"validation_loss": at} if at else {})


def report(
    spec: TrainSpec,
    losses: Sequence[float],
    errand: Errand,
    reporter: Reporter,
    *,
    validated: Sequence[float] = (),
) -> None:
    """Hand over a file for each tracker that the spec names. Raises Stopped, and nothing else: no result of a job
    depends on a tracker."""
    curves = curves_of(spec, losses, validated)
    for tracker in dict.fromkeys(spec.report_to):
        try:
            TRACKERS[tracker](spec, curves, errand, reporter)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - the supervisor of something that no job depends on
            message = str(error) if isinstance(error, TrackerFailed) else f"{type(error).__name__}: {error}"
            reporter.notice(FAILED, {"tracker": tracker, "message": message[-500:]})
