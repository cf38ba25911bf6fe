"""How long the pre-training takes and with what: everything that its result depends on, besides the machine."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The numbers of one pre-training. Batches are those of one process."""

    seed: int = 0
    processes: int = 2
    pictures: int = 24_000
    vae_steps: int = 4_000
    vae_batch: int = 12
    vae_lr: float = 1.5e-3
    unet_steps: int = 7_000
    unet_batch: int = 24
    unet_lr: float = 1.5e-3
    checkpoint_steps: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A learning rate's course: a linear warm-up, then constant, then half a cosine down to 0."""

    steps: int
    warmup_steps: int
    constant_share: float  # of all steps, the warm-up's too

    def factor(self, step: int) -> float:
        """What the learning rate is multiplied by in `step`, counted from 0."""
        falls_from = self.constant_share * self.steps
        fall = max(0.0, (step - falls_from) / max(1.0, self.steps - falls_from))
        return min(1.0, (step + 1) / max(1, self.warmup_steps)) * 0.5 * (1 + math.cos(math.pi * fall))
