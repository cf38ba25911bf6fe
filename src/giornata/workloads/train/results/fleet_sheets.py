"""Sheets of sample images that other nodes draw, as the training process follows them.

A node that draws one also puts the sheet that trackers show into the project's cache. The training process looks
there before the step that makes the next sheet, and after its last step. What nobody has drawn by then it draws.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.results import FLEET, steps_with_sheets
from giornata.workloads.interface import Reporter

PNG = b"\x89PNG\r\n\x1a\n"


def sheet_key(job: str, step: int) -> str:
    """Return the key of the cache under which the tracker's sheet of this step of the job stands."""
    return f"sheet-{job}-{step}"


@dataclass(slots=True, kw_only=True)
class FleetSheets:
    """The sheets of one job that `validation_by` leaves to the fleet; none of a job that draws for itself.

    `arrived` has PNG files by step. `weights` are the results after the steps whose sheets are still open, on the
    CPU. `settled` are the steps whose sheets are decided for this attempt: drawn, or without weights to draw from.
    """

    spec: TrainSpec
    job: str
    arrived: dict[int, bytes] = field(default_factory=dict)
    weights: dict[int, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)

    def is_ordered(self, step: int) -> bool:
        """Return True when the checkpoint of this step orders a sheet."""
        return self.spec.validation_by == FLEET and step in self._all()

    def steps(self, done: int) -> list[int]:
        """Return the steps with ordered sheets up to `done`."""
        return [step for step in self._all() if step <= done and self.is_ordered(step)]

    def open_at(self, done: int) -> int | None:
        """Return the first step up to `done` whose sheet is not settled, or None."""
        return next((step for step in self.steps(done) if step not in self.settled), None)

    def fetch(self, reporter: Reporter, *, done: int) -> None:
        """Fetch what has been drawn of the steps up to `done`. Raises Stopped when the attempt is to stop."""
        for step in self.steps(done):
            if step in self.arrived:
                continue
            path = reporter.cache_get(sheet_key(self.job, step))
            if path is not None and (png := path.read_bytes()).startswith(PNG):
                self.arrived[step] = png
                self._settle(step)

    def resume(self, reporter: Reporter, *, done: int, result: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """Take up the sheets of earlier attempts. Of the step that is resumed from the weights are there; an older
        sheet that nobody has drawn stays with its validation."""
        if not self.steps(done):
            return
        self.fetch(reporter, done=done)
        self.settled.update(self.steps(done - 1))
        if self.is_ordered(done) and done not in self.settled:
            self.weights[done] = result()

    def undrawn(self, reporter: Reporter) -> Iterator[tuple[int, Mapping[str, torch.Tensor]]]:
        """Return the steps that nobody has drawn, with their weights; each is settled once the next is asked for."""
        for step, result in sorted(self.weights.items()):
            self.fetch(reporter, done=step)
            if step not in self.settled:
                yield step, result
                self._settle(step)

    def _settle(self, step: int) -> None:
        self.settled.add(step)
        self.weights.pop(step, None)

    def _all(self) -> range:
        return steps_with_sheets(self.spec.validation_steps, self.spec.max_train_steps)
