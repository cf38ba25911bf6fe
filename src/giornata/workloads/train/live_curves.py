"""The curves of a job while its steps go on, for a tracker that shows them live: W&B, where the job has a key."""

import tempfile
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from giornata.diffusion.wandb_live import Meanwhile
from giornata.diffusion.wandb_run import deliver, upload, waiting
from giornata.engine.workload import Reporter
from giornata.protocol.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.keeping import Keeper
from giornata.workloads.train.pace import Clock
from giornata.workloads.train.tracking import FAILED, curves_of
from giornata.workloads.train.wandb_report import wandb_run


def live_curves(
    start: Start, spec: TrainSpec, keeper: Keeper, *, reporter: Reporter, clock: Clock
) -> AbstractContextManager[object]:
    """Within, they are sent every few minutes, as far as the last checkpoint: what comes after it may still be lost
    with the node, and trained again on another."""
    if "wandb" not in spec.report_to or start.wandb_api_key is None:
        return nullcontext()
    live = _Live(
        spec=spec,
        keeper=keeper,
        job=start.job,
        directory=start.directory,
        api_key=start.wandb_api_key,
        reporter=reporter,
        clock=clock,
    )
    return Meanwhile(live.send, tell=live.tell)


@dataclass(slots=True, kw_only=True)
class _Live:
    spec: TrainSpec
    keeper: Keeper
    job: str
    directory: Path
    api_key: SecretStr
    reporter: Reporter
    clock: Clock
    _sent: int = field(default=0, init=False)
    _told: bool = field(default=False, init=False)

    def send(self, stop: threading.Event) -> None:
        """Nothing, when there is nothing new."""
        step = self.keeper.announced or 0
        if step <= self._sent:
            return
        curves = curves_of(self.spec, self.keeper.losses[:step], self.keeper.validated)
        run = wandb_run(self.spec, curves.values, at=curves.at, job=self.job, origin=self.keeper.origin)
        wait = waiting(self.clock, stop.is_set)
        with tempfile.TemporaryDirectory(prefix="wandb-", dir=self.directory) as folder:
            deliver(run, Path(folder), wait=wait)
            upload(run, Path(folder), self.api_key, wait=wait)
        self._sent = step

    def tell(self, message: str) -> None:
        """Once: who is away for hours would fill the job's events."""
        if not self._told:
            self.reporter.notice(FAILED, {"tracker": "wandb", "message": message[-500:]})
        self._told = True
