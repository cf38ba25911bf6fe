"""The average of the weights (EMA), which is what a run makes: of sharded weights each trainer averages its part."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.distributed.tensor import DTensor

EMA = "ema."


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this trainer's part of a sharded tensor; a whole tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Averages:
    """Begins with the weights as they are at its first update, `steps` updates ago. After that the average moves
    towards the weights by 1 - decay, where decay = min(given, (1 + n) / (10 + n)) at the n-th: as diffusers'
    EMAModel, so that the beginning is soon forgotten. Float32, where the weights are."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], *, decay: float) -> None:
        self._parameters, self._decay = dict(parameters), decay
        self._tensors: dict[str, torch.Tensor] = {}
        self.steps = 0

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The averages by the parameters' names, sharded like them; empty before the first update."""
        return self._tensors

    @torch.no_grad()
    def begin(self, steps: int) -> None:
        """Make the averages of `steps` updates. The caller fills in their values."""
        self._tensors = {name: each.detach().clone() for name, each in self._parameters.items()} if steps else {}
        self.steps = steps

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights, after a step."""
        if not self.steps:
            self.begin(1)
            return
        decay = min(self._decay, (1 + self.steps) / (10 + self.steps))
        averages = [local(each) for each in self._tensors.values()]
        weights = [local(each.detach()) for each in self._parameters.values()]
        torch._foreach_lerp_(averages, weights, 1.0 - decay)
        self.steps += 1

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Give the model the averages for its weights, within the block. Before the first update nothing changes."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, average in self._tensors.items():
            mine, its = local(average), local(self._parameters[name].detach())
            kept = its.clone()
            its.copy_(mine)
            mine.copy_(kept)
