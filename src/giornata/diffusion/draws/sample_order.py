"""The order of samples: a function of the seed and of a counter, over samples sorted by their content.

Neither the names of files nor the order in which they arrived plays a part, and nothing is remembered: the
sample of any (step, micro-batch, place in the batch) can be asked for directly, so a resume needs no skipping.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from giornata.diffusion.draws import randomness
from giornata.domain.files.buckets import Size

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
    """Sort samples by content hash, caption, repeats, resolution. Samples that agree in all are interchangeable."""
    return tuple(sorted(samples, key=lambda each: (each.sha256, each.caption, each.repeats, each.resolution or 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
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
        """Return the epoch of draw number `counter` (from 0), and its place in that epoch."""
        return divmod(counter, self.count)

    def sample_at(self, counter: int) -> int:
        """Return the index, among the sorted samples, of draw number `counter`."""
        epoch, place = self.epoch_and_place(counter)
        return _epoch(self.seed, self.role, epoch, self.count)[place]

    def batch_at(self, number: int, size: int) -> list[int]:
        """Return the draws of batch number `number` (from 0), when each takes `size`."""
        return [self.sample_at(counter) for counter in range(number * size, (number + 1) * size)]


@lru_cache(maxsize=256)  # a batch may span two epochs, and every bucket of both roles is in an epoch of its own
def _epoch(seed: int, role: str, epoch: int, count: int) -> tuple[int, ...]:
    return tuple(randomness.permutation(seed, f"order/{role}", epoch, n=count))


# ---- buckets: which pictures share a micro-batch is a function of the seed and of the batch's number
#
# Every bucket is an endless `SampleOrder` of its own, cut into batches of `batch`
# pictures. By the end of epoch e (from 0) bucket b has had ceil((e + 1) · n_b / batch) batches, n_b being its
# pictures, repeats counted: so it has shown each of them e + 1 times, and less than one batch more. What does not
# fill a batch is filled from the bucket's next round, and taken off the following epochs. Hence every batch is full
# and of one size, every picture is seen in the first epoch, and over many epochs all are seen equally often. Which
# bucket comes when is an order of the epoch's own.


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketOrder:
    """Micro-batches of `batch` samples of one bucket each. `members` are (bucket, indices of its samples), sorted by
    bucket; an index stands there as often as an epoch is to hold the sample."""

    seed: int
    role: str
    batch: int
    members: tuple[tuple[Size, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        if self.batch < 1 or not self.members or not all(indices for _, indices in self.members):
            raise ValueError("an order needs at least one sample in each bucket, and in each batch")

    def batch_at(self, number: int) -> list[int]:
        """Return the indices of the samples of micro-batch number `number`, from 0."""
        epoch = self._epoch_of(number)
        bucket, turn = self._plan(epoch)[number - self._start(epoch)]
        (height, width), indices = self.members[bucket]
        order = SampleOrder(seed=self.seed, role=f"{self.role}/{height}x{width}", count=len(indices))
        return [indices[place] for place in order.batch_at(turn, self.batch)]

    def _epoch_of(self, number: int) -> int:
        count = sum(len(indices) for _, indices in self.members)
        return bisect_right(range(number * self.batch // count + 2), number, key=self._start) - 1

    def _start(self, epoch: int) -> int:
        """Return the number of the first micro-batch of an epoch."""
        return sum(self._turns(bucket, epoch) for bucket in range(len(self.members)))

    def _turns(self, bucket: int, epochs: int) -> int:
        """Return how many batches a bucket has had after so many epochs."""
        return -(-epochs * len(self.members[bucket][1]) // self.batch)

    def _plan(self, epoch: int) -> tuple[tuple[int, int], ...]:
        """Return (bucket, number of its batch) for each micro-batch of an epoch."""
        spans = tuple(
            (self._turns(bucket, epoch), self._turns(bucket, epoch + 1)) for bucket in range(len(self.members))
        )
        return _shuffled(self.seed, self.role, epoch, spans)


@lru_cache(maxsize=16)
def _shuffled(seed: int, role: str, epoch: int, spans: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    turns = [(bucket, turn) for bucket, (first, end) in enumerate(spans) for turn in range(first, end)]
    order = randomness.permutation(seed, f"bucket-order/{role}", epoch, n=len(turns))
    return tuple(turns[place] for place in order)


def by_bucket(repeats: Sequence[int], buckets: Sequence[Size]) -> tuple[tuple[Size, tuple[int, ...]], ...]:
    """Return `BucketOrder.members` of samples that are held `repeats` times and lie in these buckets."""
    found: Mapping[Size, list[int]] = {bucket: [] for bucket in sorted(set(buckets))}
    for index, (count, bucket) in enumerate(zip(repeats, buckets, strict=True)):
        found[bucket].extend([index] * count)
    return tuple((bucket, tuple(indices)) for bucket, indices in found.items())
