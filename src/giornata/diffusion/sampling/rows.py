"""One picture while it is denoised. Rows share the forward passes of a UNet; nothing else of a row is another's.

Shapes: C, H, W of the latents; the control picture's H and W are those of the picture.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from giornata.diffusion.encode.prompt_embeds import PromptEmbeds
from giornata.diffusion.sampling.row_schedule import RowSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCondition:
    """The numbers of a picture's micro-conditioning, for the prompt and for the negative prompt."""

    time_ids: tuple[float, ...]
    negative_time_ids: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inpainting:
    """The part of a picture that stays. `mask_11HW` is 1 where the picture is drawn anew.

    A UNet of 4 channels is given back the known part after each step: `image_latents_1CHW`, with `noise_1CHW` of the
    next level. A UNet of 9 channels sees mask and `masked_latents_1CHW` instead.
    """

    mask_11HW: torch.Tensor
    noise_1CHW: torch.Tensor
    image_latents_1CHW: torch.Tensor | None = None
    masked_latents_1CHW: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowControl:
    """A ControlNet that steers a row from the share `start` to the share `end` of its evaluations.

    `image_13HW` is the control picture in 0 … 1, in the ControlNet's precision.
    """

    model: Any
    image_13HW: torch.Tensor
    weight: float = 1.0
    start: float = 0.0
    end: float = 1.0

    def acts_at(self, evaluation: int, evaluations: int) -> bool:
        """Return True when the ControlNet acts in this evaluation, counted from 0."""
        return evaluation / evaluations >= self.start and (evaluation + 1) / evaluations <= self.end


@dataclass(slots=True, kw_only=True, eq=False)
class DenoisingRow:
    """A picture between two evaluations of the UNet.

    `loras` maps the key of a loaded LoRA to its weight. A row whose guidance scale is at most 1 needs no negative
    half.
    """

    text: PromptEmbeds
    schedule: RowSchedule
    latents_1CHW: torch.Tensor
    guidance_scale: float
    sizes: SizeCondition
    inpainting: Inpainting | None = None
    controls: tuple[RowControl, ...] = ()
    loras: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Return True when the latents are those of the finished picture."""
        return self.schedule.is_done

    def model_input(self) -> torch.Tensor:
        """Return what the UNet is shown of this row: 1CHW, with 9 channels for a UNet that was made to inpaint."""
        shown_1CHW = self.schedule.model_input(self.latents_1CHW)
        kept = self.inpainting
        if kept is None or kept.masked_latents_1CHW is None:
            return shown_1CHW
        return torch.cat([shown_1CHW, kept.mask_11HW, kept.masked_latents_1CHW], dim=1)

    def advance(self, noise_1CHW: torch.Tensor) -> None:
        """Move the latents by one evaluation, whose result is `noise_1CHW`."""
        self.latents_1CHW = self.schedule.step(noise_1CHW, self.latents_1CHW)
        if self.inpainting is not None and (known_1CHW := self.inpainting.image_latents_1CHW) is not None:
            if not self.is_done:
                known_1CHW = self.schedule.noised(known_1CHW, self.inpainting.noise_1CHW)
            mask_11HW = self.inpainting.mask_11HW
            self.latents_1CHW = (1 - mask_11HW) * known_1CHW + mask_11HW * self.latents_1CHW

    def active_controls(self) -> tuple[RowControl, ...]:
        """Return the ControlNets that act in the next evaluation, in their order."""
        done, total = self.schedule.evaluated, self.schedule.evaluations
        return tuple(control for control in self.controls if control.acts_at(done, total))
