"""The trainers of a run as one trainer sees them: its own rank, and the agreements of all.

Whoever starts the processes initializes `torch.distributed`; a process alone needs none of it. What is agreed on
between steps goes over the CPU (gloo), in groups of its own: gradients may be under way on the device meanwhile, and
so may a checkpoint that is written in the background.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

PATIENCE = timedelta(minutes=30)
"""One trainer may wait so long for another's rows."""


class Channel:
    """A line between all trainers that one thread of each may use. `together`: they are in a group.

    All trainers make it at the same place of their programs, and each call in the same order.
    """

    def __init__(self) -> None:
        self.together = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if self.together else 0
        self.world = distributed.get_world_size() if self.together else 1
        self.group = distributed.new_group(backend="gloo", timeout=PATIENCE) if self.together else None

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of all trainers, by rank. All trainers give equally many."""
        mine = torch.tensor(numbers, dtype=torch.int64)
        if self.world == 1:
            return [mine.tolist()]
        found = [torch.empty_like(mine) for _ in range(self.world)]
        distributed.all_gather(found, mine, group=self.group)
        return [each.tolist() for each in found]

    def gather_objects(self, mine: Any) -> list[Any]:
        """Gather an object of every trainer, by rank. Objects are pickled, so use only processes of one run."""
        if self.world == 1:
            return [mine]
        found: list[Any] = [None] * self.world
        distributed.all_gather_object(found, mine, group=self.group)
        return found

    def to_first(self, mine: Any) -> list[Any]:
        """Gather every trainer's object by rank at the first trainer; nothing at the others. Objects are pickled."""
        if self.world == 1:
            return [mine]
        found: list[Any] | None = [None] * self.world if self.rank == 0 else None
        distributed.gather_object(mine, found, dst=0, group=self.group)
        return found or []

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all trainers' tensors, element by element, in float64 on the CPU."""
        total = values.detach().to("cpu", torch.float64, copy=True)
        if self.world > 1:
            distributed.all_reduce(total, group=self.group)
        return total
