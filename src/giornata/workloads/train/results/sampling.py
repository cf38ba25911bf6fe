"""Draws a job's pictures by the warm base, with nothing loaded, and never makes the job fail.

At the end the files that users load are written before. A failure here, of memory above all, is an event of the job,
and the job goes on, or ends, without pictures.
"""

import gc
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from giornata.diffusion.adapter.lora import Adapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.sampling.grid_layout import cell_side_px
from giornata.diffusion.sampling.samples import (
    PromptImages,
    by_step_sheet,
    draw_learned,
    draw_samples,
    sheet,
    step_sheet,
)
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.file_names import by_step_file, samples_file, sheet_file
from giornata.protocol.training.results import FLEET, steps_beside_each_other, steps_with_sheets
from giornata.workloads.interface import AgentRequest, Reporter, Stopped
from giornata.workloads.train.faults import reason_of
from giornata.workloads.train.results.fleet_sheets import FleetSheets

# ---- the album: small pictures of the steps so far, for the sheet of all steps
#
# They travel in the checkpoints: the attempt that makes the sheet may have drawn none of them itself.
#
# Shapes: S steps, P prompts; T pixels of a side.

PICTURES = "log.samples"
"""The tensor of a checkpoint: pictures_SPTT3, uint8; what could not be drawn is black."""
MORE_PICTURES = "log.more_samples"
"""The same of the steps without a column, in jobs that report to a tracker."""
MOST_SIDE_PX = 192

Album = dict[int, torch.Tensor]
"""pictures_PTT3 by step."""


def columns(spec: TrainSpec) -> tuple[int, ...]:
    """Return the steps whose pictures are kept: none when other nodes draw them."""
    if spec.validation_by == FLEET:
        return ()
    return steps_beside_each_other(spec.validation_steps, spec.max_train_steps)


def small(picture: Image.Image) -> Image.Image:
    """Return a picture at the size that the sheet shows."""
    side = min(*picture.size, MOST_SIDE_PX)
    return picture if picture.size == (side, side) else picture.resize((side, side), Image.Resampling.LANCZOS)


def put(album: Album, spec: TrainSpec, step: int, pictures: Sequence[Image.Image]) -> None:
    """Keep the pictures of this step, if the sheet has a column for it, or trackers of any node show it."""
    if spec.report_to or spec.validation_by == FLEET or step in columns(spec):
        drawn = [np.asarray(small(picture).convert("RGB")) for picture in pictures]
        album[step] = torch.from_numpy(np.stack(drawn))


def _steps_by_tensor(spec: TrainSpec) -> dict[str, tuple[int, ...]]:
    """Return the steps whose pictures each tensor of a checkpoint holds. Trackers show all steps."""
    shown = columns(spec)
    if not spec.report_to or spec.validation_by == FLEET:
        return {PICTURES: shown}
    sheets = steps_with_sheets(spec.validation_steps, spec.max_train_steps)
    return {PICTURES: shown, MORE_PICTURES: tuple(step for step in sheets if step not in shown)}


def to_keep(album: Mapping[int, torch.Tensor], spec: TrainSpec, step: int) -> dict[str, torch.Tensor]:
    """Return the pictures for the checkpoint of this step: those before it, because the attempt that resumes there
    draws the step's own. Nothing before the first."""
    side = min(spec.resolution, MOST_SIDE_PX)
    nothing = torch.zeros((len(spec.sample_prompts), side, side, 3), dtype=torch.uint8)
    kept = {
        name: [album.get(each, nothing) for each in steps if each < step]
        for name, steps in _steps_by_tensor(spec).items()
    }
    return {name: torch.stack(pictures) for name, pictures in kept.items() if pictures}


def taken_up(tensors: Mapping[str, torch.Tensor], spec: TrainSpec) -> Album:
    """Return the album of a checkpoint; empty for one of a version that kept none."""
    found = {name: steps for name, steps in _steps_by_tensor(spec).items() if name in tensors}
    pairs = (pair for name, steps in found.items() for pair in zip(steps, tensors[name], strict=False))
    return {step: pictures for step, pictures in pairs if bool(pictures.any())}


def drawn(album: Mapping[int, torch.Tensor], step: int) -> list[Image.Image]:
    """Return the pictures of a step; none when they could not be drawn."""
    return [Image.fromarray(each.numpy()) for each in album[step]] if step in album else []


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedSheets:
    """The sheets that trackers show: of the album's pictures, for those of earlier attempts are there, too."""

    base: BaseModel
    spec: TrainSpec
    album: Album
    fleet: FleetSheets

    def png(self, step: int) -> bytes | None:
        """Return the sheet of this step; None where no pictures were drawn."""
        if not (pictures := drawn(self.album, step)):
            return self.fleet.arrived.get(step)
        file, cell_px = io.BytesIO(), _cell_px(self.spec)
        step_sheet(pictures, self.base, self.spec, step=step, cell_px=cell_px).save(file, format="PNG")
        return file.getvalue()

    def is_awaited(self, step: int) -> bool:
        """Return True when this process draws after this step, and has not drawn."""
        last = bool(self.spec.sample_prompts) and step == self.spec.max_train_steps
        return step not in self.album and (last or draws_after(self.spec, step))

    def known(self, done: int) -> int:
        """Return up to which of the `done` steps it is known whether there is a sheet, and which."""
        if (awaited := self.fleet.open_at(done)) is not None:
            return awaited - 1
        return done - 1 if self.is_awaited(done) else done


def draws_after(spec: TrainSpec, step: int) -> bool:
    """Return True when the training process draws pictures after this step, which is not the last."""
    return spec.validation_by != FLEET and step in steps_with_sheets(spec.validation_steps, spec.max_train_steps)


def _cell_px(spec: TrainSpec) -> int:
    return min(cell_side_px(spec.resolution), MOST_SIDE_PX)


NOT_DRAWN = "samples-not-drawn"


class _AgentRequested(Exception):
    """An exception: the agent wants something, and the pictures can wait."""

    def __init__(self, agent_request: AgentRequest) -> None:
        super().__init__(agent_request)
        self.agent_request = agent_request


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRenderer:
    """Draws the pictures of `spec.sample_prompts`, and hands them over.

    With `too_large`, see `memory_budget.why_not_drawn`, nothing is tried: some drivers spill rather than say so. A
    driver's error is raised: after it nothing that the device says can be trusted. `album` has the small pictures of
    the steps before, and gets those of others.
    """

    base: BaseModel
    spec: TrainSpec
    adapters: Adapters
    directory: Path
    reporter: Reporter
    too_large: str | None = None
    album: Album = field(default_factory=dict)

    def at_the_end(self, result: Mapping[str, torch.Tensor], *, attend: Callable[[], None]) -> str | None:
        """Draw with `result` and by the base alone; return the file's name, or None without pictures. `attend` is
        called between denoising steps and raises Stopped when the attempt is to end."""
        if not self.spec.sample_prompts:
            return None

        samples: list[PromptImages] = []

        def draw() -> Image.Image:
            samples.extend(draw_samples(self.base, self.spec, self.adapters, result, tick=self._tick(attend)))
            put(self.album, self.spec, self.spec.max_train_steps, [each.lora for each in samples])
            return sheet(samples, self.base, self.spec)

        name, count = samples_file(self.spec.output_name), len(self.spec.sample_prompts)
        if not self._hand_over(name, draw, pictures=2 * count):
            return None
        if columns(self.spec):
            beside = by_step_file(self.spec.output_name)
            self._hand_over(beside, lambda: self._of_all_steps(samples), pictures=2 * count)
        return name

    def _of_all_steps(self, samples: Sequence[PromptImages]) -> Image.Image:
        """Compose the base model's pictures, those of the steps in between, and those of the end."""
        base, last = [small(each.base) for each in samples], [small(each.lora) for each in samples]
        between = [(str(step), drawn(self.album, step)) for step in columns(self.spec)]
        beside = [("base model", base), *between, (str(self.spec.max_train_steps), last)]
        return by_step_sheet(beside, self.base, self.spec, cell_px=_cell_px(self.spec))

    def is_time(self, step: int) -> bool:
        """Return True when this process draws pictures after this step, which is not the last."""
        return draws_after(self.spec, step)

    def after(self, step: int, result: Mapping[str, torch.Tensor]) -> AgentRequest:
        """Draw with `result` alone. Returns GO_ON, or another request that came meanwhile: then nothing was drawn."""

        def draw() -> Image.Image:
            with torch.compiler.set_stance("force_eager"):  # kernels of the steps are for other shapes
                pictures = draw_learned(self.base, self.spec, self.adapters, result, tick=self._tick(self._heed))
            put(self.album, self.spec, step, pictures)
            cell_px = cell_side_px(self.spec.resolution)
            return step_sheet(pictures, self.base, self.spec, step=step, cell_px=cell_px)

        try:
            self._hand_over(sheet_file(step, self.spec.output_name), draw, pictures=len(self.spec.sample_prompts))
        except _AgentRequested as requested:
            return requested.agent_request
        return AgentRequest.GO_ON

    def _tick(self, attend: Callable[[], None]) -> Callable[[int, int], None]:
        def tick(done: int, total: int) -> None:
            # At each denoising step: on a slow device a picture takes long, and is watched.
            self.reporter.phase("sampling", done, total)
            attend()

        return tick

    def _heed(self) -> None:
        if (agent_request := self.reporter.agent_request()) is not AgentRequest.GO_ON:
            raise _AgentRequested(agent_request)

    def _hand_over(self, name: str, draw: Callable[[], Image.Image], *, pictures: int) -> bool:
        if self.too_large is not None:
            self.reporter.notice(NOT_DRAWN, {"message": self.too_large})
            return False
        try:
            path = self.directory / name
            draw().save(path, format="PNG")
        except (Stopped, _AgentRequested):
            raise
        except Exception as error:
            if reason_of(error) is Reason.NODE_DRIVER:
                raise
            self.reporter.notice(NOT_DRAWN, {"message": f"{type(error).__name__}: {error}"[:500]})
        else:
            self.reporter.phase("sampling", pictures, pictures)
            self.reporter.artifact(name, path, "image/png")
            return True
        # After the except clause, for its exception held what was in memory.
        gc.collect()
        if self.base.device.type == "cuda":
            torch.cuda.empty_cache()
        return False
