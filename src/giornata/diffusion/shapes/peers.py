"""Several processes that train one model: each takes its part of every batch, and all make the same step."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import distributed

PATIENCE = timedelta(minutes=30)  # one process may wait while another writes or is stopped by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers(AbstractContextManager["Peers"]):
    """This process (`rank`, from 0) among `count`. They meet at `meeting`, a file that must not be there before.

    A single process needs no meeting and never waits.
    """

    rank: int = 0
    count: int = 1
    meeting: Path | None = None

    def __enter__(self) -> Self:
        if self.count > 1:
            distributed.init_process_group(
                "gloo", init_method=f"file://{self.meeting}", rank=self.rank, world_size=self.count, timeout=PATIENCE
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.count > 1:
            distributed.destroy_process_group()

    def average(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace every gradient by its mean over all processes."""
        if self.count == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        together = torch.cat([gradient.reshape(-1) for gradient in gradients])
        distributed.all_reduce(together)
        parts = together.div_(self.count).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def interleave(self, mine: torch.Tensor) -> torch.Tensor:
        """Rows 0, 1, 2 … of which this process has every `count`-th, from its rank on. All have as many."""
        if self.count == 1:
            return mine
        parts = [torch.empty_like(mine) for _ in range(self.count)]
        distributed.all_gather(parts, mine.contiguous())
        return torch.stack(parts, dim=1).flatten(0, 1)
