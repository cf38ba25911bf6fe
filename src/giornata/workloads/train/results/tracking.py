"""The curves of a whole job for trackers, whatever number of attempts the job takes.

A node's measurements are lost with the node, and so are the results of all attempts but the last. So the losses and
small sample images travel in the checkpoints, and the last attempt writes the file of the whole job: its bytes show
no seam either. A sheet of sample images is a value in the row of its step, so it is there once, as the row is. The
time axis of TensorBoard's file counts steps, so that the file does not depend on when nodes came and went. W&B gets
the rows while the steps go on as well.
"""

import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import SecretStr

from giornata.diffusion.draws.schedule import learning_rate_factor
from giornata.diffusion.files.lora_facts import public_name
from giornata.diffusion.files.model_card import MODEL_NAMES
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.results import WANDB
from giornata.protocol.training.train_fields import validated_steps
from giornata.tracking.event_file import NAME, EventFile
from giornata.tracking.wandb_run import Row, TrackerFailed, WandbRun, WandbStream, deliver, upload, waiting
from giornata.workloads.interface import Clock, Reporter, Stopped
from giornata.workloads.train.results.sampling import TrackedSheets

FAILED = "tracker-failed"
LOSSES = "log.loss"
"""The tensor of a checkpoint: loss_S, float32, of all steps that are done."""
VALIDATED = "log.validation_loss"
"""The tensor of a checkpoint: the losses on held-out pictures so far, float64."""
NOT_TOLD = frozenset({"hub_token_secret", "wandb_api_key_secret"})
LIVE_EVERY_S = 1.0
SAMPLES = "train/samples"
"""The name under which trackers show the sheets of sample images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerContext:
    """The context that trackers need besides the curves.

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
        """Return the exit status of a process; None when it had to be ended after `timeout_s`. Raises Stopped."""

        def is_over() -> bool:
            self.attend()
            return False

        return waiting(self.clock, is_over)(process, timeout_s)


def _write_tensorboard(rows: Sequence[Row], context: TrackerContext, reporter: Reporter) -> None:
    """Write TensorBoard's event file, for `tensorboard --logdir` of the folder that it is downloaded to."""
    path = context.directory / f"{NAME}.0.giornata"
    file = EventFile(path)
    for step, values in rows:
        file.add(step, values, time_s=float(step))
    file.close()
    reporter.artifact(path.name, path)


def _write_wandb(spec: TrainSpec, rows: Sequence[Row], context: TrackerContext, reporter: Reporter) -> None:
    run = wandb_run(spec, job=context.job, origin=context.origin)
    reporter.phase("reporting")
    written = deliver(run, rows, context.directory, wait=context.wait)
    reporter.artifact(written.name, written)
    if context.api_key is not None:
        upload(run, rows, context.directory, context.api_key, wait=context.wait)
    elif spec.wandb_api_key_secret is not None:
        raise TrackerFailed(f"the server could not hand out {spec.wandb_api_key_secret}: set the secret again")


def wandb_run(spec: TrainSpec, *, job: str, origin: Mapping[str, str]) -> WandbRun:
    """Return the run of a job at W&B: its settings without secrets and paths."""
    fields = {name: value for name, value in spec.model_dump(mode="json").items() if name not in NOT_TOLD}
    named = {name: public_name(fields[name]) for name in MODEL_NAMES if fields.get(name)}
    return WandbRun(
        id=job,
        name=spec.wandb_run_name or job,
        project=spec.wandb_project,
        entity=spec.wandb_entity,
        config=fields | named | dict(origin),
    )


def losses_to_keep(
    spec: TrainSpec, losses: Sequence[float], validated: Sequence[float] = ()
) -> dict[str, torch.Tensor]:
    """Return the losses for a checkpoint: those of jobs that report to a tracker, and those on held-out pictures."""
    kept = {LOSSES: torch.tensor(losses, dtype=torch.float32)} if spec.report_to else {}
    return kept | ({VALIDATED: torch.tensor(validated, dtype=torch.float64)} if spec.validation_split else {})


def losses_before(spec: TrainSpec, step: int) -> dict[str, torch.Tensor]:
    """Return tensors of the shapes that the checkpoint of this step holds, filled with zeros."""
    validated = sum(each <= step for each in validated_steps(spec))
    return losses_to_keep(spec, [0.0] * step, [0.0] * validated)


def rows_of(
    spec: TrainSpec,
    losses: Sequence[float],
    validated: Sequence[float] = (),
    *,
    sheets: TrackedSheets | None = None,
    after: int = 0,
) -> list[Row]:
    """Return the curves' rows for the steps beyond `after`. `losses` are those of all steps of the job so far,
    `validated` those on held-out pictures."""
    found = dict(zip(validated_steps(spec), validated, strict=False))
    rows: list[Row] = []
    for step in range(after + 1, len(losses) + 1):
        rate = spec.learning_rate * learning_rate_factor(spec, step - 1)
        values: dict[str, float | bytes] = {"train/loss": losses[step - 1], "train/learning_rate": rate}
        if step in found:
            values["train/validation_loss"] = found[step]
        if sheets is not None and (png := sheets.png(step)) is not None:
            values[SAMPLES] = png
        rows.append((step, values))
    return rows


@contextmanager
def live_curves(
    start: Start,
    spec: TrainSpec,
    losses: Sequence[float],
    validated: Sequence[float],
    *,
    sheets: TrackedSheets,
    origin: Mapping[str, str],
    reporter: Reporter,
    clock: Clock,
) -> Iterator[None]:
    """Within, W&B gets the steps about as they happen, where the job has a key. `losses`, `validated` and the album
    of `sheets` grow meanwhile. The row of a step waits for its sheet, if there is to be one, whoever draws
    it. Steps that W&B lacks at the end are sent by `report`, or by the next attempt."""
    if WANDB not in spec.report_to or start.wandb_api_key is None:
        yield
        return

    def tell(message: str) -> None:
        reporter.notice(FAILED, {"tracker": WANDB, "message": message[-500:]})

    with tempfile.TemporaryDirectory(prefix="wandb-", dir=start.directory) as folder:
        run = wandb_run(spec, job=start.job, origin=origin)
        stream, over = WandbStream(run, Path(folder), start.wandb_api_key), threading.Event()

        def follow() -> None:
            sent = 0
            try:
                while not over.wait(LIVE_EVERY_S):
                    known = list(losses)
                    known = known[: sheets.known(len(known))]
                    stream.add(rows_of(spec, known, list(validated), sheets=sheets, after=sent))
                    sent = max(sent, len(known))
                    stream.look_after(clock(), tell)
            except OSError as error:
                tell(f"the curves are not sent any more: {error}")

        thread = threading.Thread(target=follow, name="wandb-curves", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            stream.abort()


def report(
    spec: TrainSpec,
    losses: Sequence[float],
    context: TrackerContext,
    reporter: Reporter,
    *,
    validated: Sequence[float] = (),
    sheets: TrackedSheets | None = None,
) -> None:
    """Hand over a file for each tracker that the spec names. Raises Stopped, and nothing else: no result of a job
    depends on a tracker."""
    for tracker in dict.fromkeys(spec.report_to):
        try:
            rows = rows_of(spec, losses, validated, sheets=sheets)
            if tracker == WANDB:
                _write_wandb(spec, rows, context, reporter)
            else:
                _write_tensorboard(rows, context, reporter)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - the supervisor of something that no job depends on
            message = str(error) if isinstance(error, TrackerFailed) else f"{type(error).__name__}: {error}"
            reporter.notice(FAILED, {"tracker": tracker, "message": message[-500:]})
