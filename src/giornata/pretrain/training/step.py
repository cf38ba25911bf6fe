"""Forward and backward passes of one step: the gradient is the mean over the rows of the whole step.

Each row's loss is divided by the rows that all trainers have together in this step, so that the result does not
depend on how many trainers there are, in how many parts each computes its share, or on the last step's being short.

Shapes: B rows of one pass, N = BINS levels of noise.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from giornata.diffusion.optim.objective import Objective
from giornata.pretrain.feeding.examples import Example
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.training.parallel import Sharding

BINS = 10
"""The timesteps in as many equal ranges, from little noise to much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Losses of all rows of a step, over all trainers. `by_level` has None where no row had that much noise."""

    mean: float
    by_level: tuple[float | None, ...]
    rows: int

    def numbers(self, prefix: str = "") -> dict[str, float]:
        """The losses as metrics: `loss`, and `loss_level_<n>`."""
        levels = {f"{prefix}loss_level_{n}": each for n, each in enumerate(self.by_level) if each is not None}
        return {f"{prefix}loss": self.mean, **levels}


class Passes:
    """Runs examples through the model. `around` gives a context for the passes of so many rows."""

    def __init__(
        self,
        sharding: Sharding,
        objective: Objective,
        channel: Channel,
        around: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._sharding, self._channel, self._around = sharding, channel, around
        self._objective = replace(objective, dtype=sharding.dtype)

    def train(self, examples: Sequence[Example], *, rows: int) -> Losses:
        """Leaves the gradient in the parameters. `rows` are those of all trainers in this step; every trainer has as
        many examples."""
        sums_2N = torch.zeros(2, BINS, device=self._sharding.device)
        for place, example in enumerate(examples):
            last = place == len(examples) - 1
            with self._sharding.passing(last=last), self._around(len(example)):
                loss_B = self._each(example, sums_2N)
                # DDP and FSDP2 take the mean over the trainers.
                (loss_B.sum() * (example.weight * self._channel.world / rows)).backward()
        return self._losses(sums_2N)

    @torch.no_grad()
    def judge(self, examples: Sequence[Example]) -> Losses:
        """The losses, without gradients. Every trainer has equally many examples."""
        sums_2N = torch.zeros(2, BINS, device=self._sharding.device)
        for example in examples:
            with self._around(len(example)):
                self._each(example, sums_2N)
        return self._losses(sums_2N)

    def _each(self, example: Example, sums_2N: torch.Tensor) -> torch.Tensor:
        there = example.to(self._sharding.device, text_dtype=self._sharding.dtype)
        noisy = there.noisy
        with self._sharding.computing():
            loss_B = self._objective.each(self._sharding.model, noisy, there.embedding)
        if example.weight:
            levels_B = noisy.timesteps_B * BINS // self._objective.scheduler.config.num_train_timesteps
            sums_2N[0].index_add_(0, levels_B, loss_B.detach())
            sums_2N[1].index_add_(0, levels_B, torch.ones_like(loss_B))
        return loss_B

    def _losses(self, sums_2N: torch.Tensor) -> Losses:
        loss_N, rows_N = self._channel.sum(sums_2N)
        levels = zip(loss_N.tolist(), rows_N.tolist(), strict=True)
        rows = int(rows_N.sum())
        return Losses(
            mean=float(loss_N.sum()) / max(1, rows),
            by_level=tuple(loss / count if count else None for loss, count in levels),
            rows=rows,
        )
