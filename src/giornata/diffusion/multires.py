"""Multi-resolution noise, which sd-scripts calls pyramid noise: coarse noise on top of fine.

Level i (from 0) is normal noise of 1 / r^i of the height and width, r uniform in [2, 4), enlarged bilinearly and
multiplied by discount^i; the last level is the one with a side of one. The sum is divided by its standard deviation.

Shapes: C, H, W of the latents. The sums are made in float64, so that the way in which a processor adds seldom shows.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch.nn import functional

from giornata.diffusion.randomness import normal, uniform
from giornata.protocol.specs import TrainSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Multires:
    """At most so many levels, each `discount` times as strong as the one before."""

    iterations: int
    discount: float

    @classmethod
    def of(cls, spec: TrainSpec) -> Self | None:
        """What the spec wants; None when it wants plain noise."""
        iterations = spec.multires_noise_iterations
        return None if iterations is None else cls(iterations=iterations, discount=spec.multires_noise_discount)

    def added(self, noise_CHW: torch.Tensor, seed: int, purpose: str, key: tuple[int, ...]) -> torch.Tensor:
        """noise_CHW with the levels of this draw, float32, of a standard deviation of 1."""
        channels, height, width = noise_CHW.shape
        total_CHW = noise_CHW.double()
        for level in range(self.iterations):
            ratio = 2.0 + 2.0 * float(uniform(seed, f"{purpose}/ratio", *key, level, shape=(1,)))
            low, narrow = max(1, int(height / ratio**level)), max(1, int(width / ratio**level))
            coarse = normal(seed, purpose, *key, level, shape=(1, channels, low, narrow)).double()
            enlarged = functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
            total_CHW = total_CHW + enlarged[0] * self.discount**level
            if low == 1 or narrow == 1:
                break
        return (total_CHW / total_CHW.std()).float()
