"""Which sample comes when: a function of the seed and of a counter, over samples sorted by what they are.

Neither the names of files nor the order in which they arrived plays a part, and nothing is remembered: the
sample of any (step, micro-batch, place in the batch) can be asked for directly, so a resume needs no skipping.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from giornata.diffusion import randomness

Role = Literal["instance", "class"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A picture with its caption; an epoch holds it `repeats` times. `name` and `path` are for messages and reading;
    nothing is decided by them. `resolution`, in pixels, is trained at where it is less than the job's."""

    role: Role
    sha256: str
    caption: str
    name: str
    path: Path
    repeats: int = 1
    resolution: int | None = None


def by_content(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Sorted by content hash, caption, repeats, resolution. Samples that agree in all are interchangeable."""
    return tuple(sorted(samples, key=lambda each: (each.sha256, each.caption, each.repeats, each.resolution or 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An endless sequence over `count` places: each epoch holds every place once, in an order of its own.

    `role` keeps the orders of instance and class pictures, and of their buckets, apart.
    """

    seed: int
    role: str
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("an order needs at least one sample")

    def epoch_and_place(self, counter: int) -> tuple[int, int]:
        """In which epoch the draw number `counter` (from 0) falls, and at which place of it."""
        return divmod(counter, self.count)

    def sample_at(self, counter: int) -> int:
        """Index, among the sorted samples, of draw number `counter`."""
        epoch, place = self.epoch_and_place(counter)
        return _epoch(self.seed, self.role, epoch, self.count)[place]

    def batch_at(self, number: int, size: int) -> list[int]:
        """The draws of batch number `number` (from 0), when each takes `size`."""
        return [self.sample_at(counter) for counter in range(number * size, (number + 1) * size)]


@lru_cache(maxsize=256)  # a batch may span two epochs, and every bucket of both roles is in an epoch of its own
def _epoch(seed: int, role: str, epoch: int, count: int) -> tuple[int, ...]:
    return tuple(randomness.permutation(seed, f"order/{role}", epoch, n=count))
