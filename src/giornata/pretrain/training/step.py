"""Forward and backward passes of one step: the gradient is the mean over the rows of the whole step.

Each row's loss is divided by the rows that all trainers have together in this step, so that the result does not
depend on how many trainers there are, in how many parts each computes its share, or on the last step's being short.

Shapes: B rows of one pass, N = BINS levels of noise; in the routing of tokens N tokens of one level, K of them that
go through, D channels.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention import BasicTransformerBlock
from torch import nn

from giornata.diffusion.draws import randomness
from giornata.diffusion.optim.objective import Objective
from giornata.pretrain.feeding.examples import Example
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.training.parallel import Sharding

BINS = 10
"""The timesteps in as many equal ranges, from little noise to much."""
ROUTING = "pretrain/token-routing"
Place = tuple[int, int, str]
"""(phase, epoch, key): whose tokens."""


def routed_blocks(unet: UNet2DConditionModel) -> list[BasicTransformerBlock]:
    """All transformer blocks but those at the highest resolution."""
    middle = () if unet.mid_block is None else (unet.mid_block,)
    parts = (*unet.down_blocks[1:], *middle, *unet.up_blocks[:-1])
    return [module for part in parts for module in part.modules() if isinstance(module, BasicTransformerBlock)]


class TokenRouting:
    """Lets a random share of the image's tokens pass by the transformer blocks in the middle of the UNet while it
    trains, which is less work for each picture (after TREAD, Krause et al., 2025, arXiv 2501.04765, which does it to
    transformers alone).

    Tokens that pass by are what they were, and meet the others again after each block. Convolutions, and the blocks
    at the highest resolution on the way in and out, see all of them. Which tokens pass by is a function of (seed,
    phase, epoch, key, number of tokens).
    """

    def __init__(self, unet: UNet2DConditionModel, *, share: float, seed: int) -> None:
        self._share, self._seed = share, seed
        self._places: Sequence[Place] = ()
        self._kept: dict[int, torch.Tensor] = {}
        self._whole: dict[nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}
        for block in routed_blocks(unet):
            block.register_forward_pre_hook(self._choose)
            block.register_forward_hook(self._join)

    @contextmanager
    def routing(self, places: Sequence[Place]) -> Iterator[None]:
        """Around forward and backward pass of these pictures. Without places all tokens go through."""
        self._places = places
        try:
            yield
        finally:
            self._places = ()
            self._kept.clear()
            self._whole.clear()

    def _choose(self, block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not self._places:
            return None
        tokens_BND: torch.Tensor = args[0]
        kept_BK = self._kept_tokens(tokens_BND.shape[1], tokens_BND.device)
        index_BKD = kept_BK[:, :, None].expand(-1, -1, tokens_BND.shape[2])
        self._whole[block] = tokens_BND, index_BKD
        return tokens_BND.gather(1, index_BKD), *args[1:]

    def _join(self, block: nn.Module, _: tuple[Any, ...], out_BKD: torch.Tensor) -> torch.Tensor | None:
        if block not in self._whole:
            return None
        tokens_BND, index_BKD = self._whole.pop(block)
        return tokens_BND.to(out_BKD.dtype).scatter(1, index_BKD, out_BKD)

    def _kept_tokens(self, count: int, device: torch.device) -> torch.Tensor:
        if count not in self._kept:
            through = max(1, round(count * (1 - self._share)))
            orders = [randomness.permutation(self._seed, ROUTING, *place, count, n=count) for place in self._places]
            kept_BK = torch.tensor([sorted(order[:through]) for order in orders])
            if device.type == "cuda":
                kept_BK = kept_BK.pin_memory()  # or the copy would wait for what is under way on the device
            self._kept[count] = kept_BK.to(device, non_blocking=True)
        return self._kept[count]


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
    """Runs examples through the model. While it trains, tokens are routed where that is asked for. `around` gives a
    context for the passes of so many rows."""

    def __init__(
        self,
        sharding: Sharding,
        objective: Objective,
        channel: Channel,
        routing: TokenRouting | None = None,
        around: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._sharding, self._channel, self._routing, self._around = sharding, channel, routing, around
        self._objective = replace(objective, dtype=sharding.dtype)

    def train(self, examples: Sequence[Example], *, rows: int) -> Losses:
        """Leaves the gradient in the parameters. `rows` are those of all trainers in this step; every trainer has as
        many examples."""
        sums_2N = torch.zeros(2, BINS, device=self._sharding.device)
        for place, example in enumerate(examples):
            last = place == len(examples) - 1
            with self._sharding.passing(last=last), self._routed(example), self._around(len(example)):
                loss_B = self._each(example, sums_2N)
                # DDP and FSDP2 take the mean over the trainers.
                (loss_B.sum() * (example.weight * self._channel.world / rows)).backward()
        return self._losses(sums_2N)

    def _routed(self, example: Example) -> AbstractContextManager[None]:
        return nullcontext() if self._routing is None else self._routing.routing(example.places)

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
