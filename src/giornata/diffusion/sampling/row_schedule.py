"""The denoising schedule of one row: a scheduler of diffusers with its own state, and the timesteps that are left.

A scheduler of second order has two timesteps for each denoising step; here each timestep is one *evaluation* of the
UNet. Timesteps stay on the CPU, so that no step waits for a GPU.

Shapes: N evaluations; C, H, W of the latents.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Self

import diffusers
import torch


def make_scheduler(config: Mapping[str, Any], class_name: str, settings: Mapping[str, Any]) -> Any:
    """Return a new scheduler of this class of diffusers: the base's config, with `settings` in place of its own.

    No scheduler clips: it would clip latents as if they were pixels. diffusers' pipelines turn that off as well.
    """
    return getattr(diffusers, class_name).from_config(config, **{"clip_sample": False, **settings})


class RowSchedule:
    """The evaluations that a row still needs. `generator` draws the noise of schedulers that add some.

    Make one by `whole`, `by_strength` or `after_share`, whose slices are those of diffusers' pipelines. The scheduler
    has to be the row's own.
    """

    def __init__(self, scheduler: Any, timesteps_N: torch.Tensor, *, begin: int, generator: torch.Generator) -> None:
        self.scheduler, self._timesteps_N, self._done = scheduler, timesteps_N, 0
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(begin)
        accepted = inspect.signature(scheduler.step).parameters
        extra = {"eta": 0.0, "generator": generator}
        self._extra = {name: value for name, value in extra.items() if name in accepted}
        self._most_order = accepted["order"].default if "order" in accepted else None

    @classmethod
    def whole(cls, scheduler: Any, steps: int, *, generator: torch.Generator, end: float | None = None) -> Self:
        """Return the schedule from pure noise; to the share `end` of the noise levels when another model goes on."""
        scheduler.set_timesteps(steps, device="cpu")
        timesteps_N = scheduler.timesteps
        if end is not None:
            timesteps_N = timesteps_N[: int((timesteps_N >= _cutoff(scheduler, end)).sum())]
        return cls(scheduler, timesteps_N, begin=0, generator=generator)

    @classmethod
    def by_strength(cls, scheduler: Any, steps: int, strength: float, *, generator: torch.Generator) -> Self:
        """Return the last `strength` of the steps, at least one: the schedule of a picture that begins with
        another."""
        scheduler.set_timesteps(steps, device="cpu")
        first = steps - max(1, min(int(steps * strength), steps))
        begin = first * scheduler.order
        return cls(scheduler, scheduler.timesteps[begin:], begin=begin, generator=generator)

    @classmethod
    def after_share(cls, scheduler: Any, steps: int, start: float, *, generator: torch.Generator) -> Self:
        """Return the rest of the schedule after the share `start` of the noise levels, which another model did."""
        scheduler.set_timesteps(steps, device="cpu")
        left = int((scheduler.timesteps < _cutoff(scheduler, start)).sum())
        if scheduler.order == 2 and left and left % 2 == 0:
            left += 1  # a step of two evaluations is not cut in its middle
        begin = len(scheduler.timesteps) - left
        return cls(scheduler, scheduler.timesteps[begin:], begin=begin, generator=generator)

    @property
    def evaluations(self) -> int:
        """Return the number of evaluations in all."""
        return len(self._timesteps_N)

    @property
    def evaluated(self) -> int:
        """Return the number of evaluations that are done."""
        return self._done

    @property
    def is_done(self) -> bool:
        """Return True when no evaluation is left."""
        return self._done >= len(self._timesteps_N)

    @property
    def timestep(self) -> torch.Tensor:
        """Return the timestep of the next evaluation, on the CPU."""
        return self._timesteps_N[self._done]

    def begun(self, noise_1CHW: torch.Tensor) -> torch.Tensor:
        """Return latents of pure noise at the scheduler's first noise level."""
        return noise_1CHW * self.scheduler.init_noise_sigma

    def noised(self, latents_1CHW: torch.Tensor, noise_1CHW: torch.Tensor) -> torch.Tensor:
        """Return latents with noise of the level of the next evaluation."""
        return self.scheduler.add_noise(latents_1CHW, noise_1CHW, self._timesteps_N[self._done : self._done + 1])

    def model_input(self, latents_1CHW: torch.Tensor) -> torch.Tensor:
        """Return the latents as the UNet sees them."""
        return self.scheduler.scale_model_input(latents_1CHW, self.timestep)

    def step(self, noise_1CHW: torch.Tensor, latents_1CHW: torch.Tensor) -> torch.Tensor:
        """Return the latents after one evaluation, whose result is `noise_1CHW`."""
        extra = {**self._extra, **self._order()}
        moved = self.scheduler.step(noise_1CHW, self.timestep, latents_1CHW, **extra, return_dict=False)[0]
        self._done += 1
        return moved

    def _order(self) -> dict[str, int]:
        """Return the order of the next step where a scheduler takes one: no more than the derivatives that it has.

        LMSDiscreteScheduler alone takes the index of the step for their number. In a schedule that begins in the
        middle it would compute coefficients for derivatives that it does not have.
        """
        return {} if self._most_order is None else {"order": min(self._most_order, self._done + 1)}


def _cutoff(scheduler: Any, share: float) -> int:
    levels = scheduler.config.num_train_timesteps
    return round(levels - share * levels)
