"""The small pictures of the steps so far, for the sheet on which all steps stand beside each other.

They travel in the checkpoints: the attempt that makes the sheet may have drawn none of them itself.

Shapes: S steps, P prompts; T pixels of a side.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL import Image

from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.results import steps_beside_each_other

PICTURES = "log.samples"
"""The tensor of a checkpoint: pictures_SPTT3, uint8; what could not be drawn is black."""
MOST_SIDE_PX = 192

Album = dict[int, torch.Tensor]
"""pictures_PTT3 by step."""


def columns(spec: TrainSpec) -> tuple[int, ...]:
    """The steps that are kept."""
    return steps_beside_each_other(spec.validation_steps, spec.max_train_steps)


def small(picture: Image.Image) -> Image.Image:
    """A picture as the sheet has it."""
    side = min(*picture.size, MOST_SIDE_PX)
    return picture if picture.size == (side, side) else picture.resize((side, side), Image.Resampling.LANCZOS)


def put(album: Album, spec: TrainSpec, step: int, pictures: Sequence[Image.Image]) -> None:
    """Keep the pictures of this step, if the sheet has a column for it."""
    if step in columns(spec):
        drawn = [np.asarray(small(picture).convert("RGB")) for picture in pictures]
        album[step] = torch.from_numpy(np.stack(drawn))


def to_keep(album: Mapping[int, torch.Tensor], spec: TrainSpec, step: int) -> dict[str, torch.Tensor]:
    """What goes into the checkpoint of this step: the columns before it, for those of the step itself are drawn by
    whoever goes on from there. Nothing before the first column."""
    side = min(spec.resolution, MOST_SIDE_PX)
    nothing = torch.zeros((len(spec.sample_prompts), side, side, 3), dtype=torch.uint8)
    kept = [album.get(each, nothing) for each in columns(spec) if each < step]
    return {PICTURES: torch.stack(kept)} if kept else {}


def taken_up(tensors: Mapping[str, torch.Tensor], spec: TrainSpec) -> Album:
    """The album of a checkpoint; empty for one of a version that kept none."""
    pictures = tensors.get(PICTURES)
    if pictures is None:
        return {}
    return {step: each for step, each in zip(columns(spec), pictures, strict=False) if bool(each.any())}


def drawn(album: Mapping[int, torch.Tensor], step: int) -> list[Image.Image]:
    """The pictures of a step; none when they could not be drawn."""
    return [Image.fromarray(each.numpy()) for each in album[step]] if step in album else []
