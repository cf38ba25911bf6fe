"""The rows that a phase trains, and their order: a function of the manifest, the seed and the phase.

An epoch has every shard once, and of a shard every row once, both in an order of the epoch. A phase has as many whole
epochs as fit into its samples, and the first rows of the next epoch. A *portion* is one shard in one epoch. Portions
are numbered through the phase, so that (portion, row) names one use of one row.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Self

import numpy as np

from giornata.diffusion.draws import randomness
from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.manifest import Manifest
from giornata.protocol.pretraining import PretrainConfig


@dataclass(frozen=True, slots=True)
class NumberSet:
    """A set of whole numbers from 0 on: bit n of `bits` says whether n is in it."""

    bits: int = 0

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        found = np.fromiter(numbers, np.int64)
        flags = np.zeros(found.max(initial=-1) + 1, bool)
        flags[found] = True
        return cls(int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little"))

    @classmethod
    def of_spans(cls, spans: Iterable[Iterable[int]]) -> Self:
        """The numbers start … stop - 1 of each (start, stop). Spans do not overlap."""
        return cls(sum((1 << stop) - (1 << start) for start, stop in spans))

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Half-open intervals (start, stop), sorted, with gaps between them."""
        edges = np.flatnonzero(np.diff(self._flags(), prepend=0, append=0)).tolist()
        return tuple(zip(edges[::2], edges[1::2], strict=True))

    def _flags(self) -> np.ndarray:
        content = self.bits.to_bytes(-(-self.bits.bit_length() // 8), "little")
        return np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little").view(np.int8)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[int]:
        yield from np.flatnonzero(self._flags()).tolist()

    def __or__(self, other: Self) -> Self:
        return type(self)(self.bits | other.bits)

    def __and__(self, other: Self) -> Self:
        return type(self)(self.bits & other.bits)

    def __sub__(self, other: Self) -> Self:
        return type(self)(self.bits & ~other.bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Rows of one shard to train in one epoch. `rows` are numbers within the shard."""

    number: int
    epoch: int
    shard: int
    rows: NumberSet


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOfPhase:
    """The rows of one phase. `phase` is its number, `shard_rows` the number of rows of each shard.

    `left_out` rows (shard and its rows, by shard) are for validation and never trained. `caption_weights` choose one
    of a row's captions (giornata.pretrain.encoding.transforms).
    """

    seed: int
    phase: int
    samples: int
    shard_rows: tuple[int, ...]
    left_out: tuple[tuple[int, NumberSet], ...] = ()
    caption_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        shards = [shard for shard, _ in self.left_out]
        if shards != sorted(set(shards)):
            raise ValueError("the rows left out are not in the order of their shards, each once")
        if not any(self._wanted(shard) for shard in range(len(self.shard_rows))):
            raise ValueError("there is no row to train")

    def portions(self) -> Iterator[Portion]:
        """All portions in order. Together they have `samples` rows."""
        left, number = self.samples, 0
        while left:
            epoch, place = divmod(number, len(self.shard_rows))
            shard = _shard_order(self.seed, self.phase, epoch, len(self.shard_rows))[place]
            rows = self._wanted(shard)
            if len(rows) > left:
                rows = NumberSet.of(self._shuffled(epoch, shard, rows)[:left])
            if rows:
                yield Portion(number=number, epoch=epoch, shard=shard, rows=rows)
            left -= len(rows)
            number += 1

    def in_order(self, portion: Portion) -> list[int]:
        """The portion's rows in the order of training. Missing rows do not change the order of the others."""
        return self._shuffled(portion.epoch, portion.shard, portion.rows)

    def _wanted(self, shard: int) -> NumberSet:
        whole = NumberSet.of_spans([(0, self.shard_rows[shard])])
        place = bisect_left(self.left_out, shard, key=itemgetter(0))
        found = place < len(self.left_out) and self.left_out[place][0] == shard
        return whole - self.left_out[place][1] if found else whole

    def _shuffled(self, epoch: int, shard: int, rows: NumberSet) -> list[int]:
        count, wanted = self.shard_rows[shard], set(rows)
        order = randomness.permutation(self.seed, "pretrain/rows", self.phase, epoch, shard, n=count)
        return [row for row in order if row in wanted]


@lru_cache(maxsize=4)
def _shard_order(seed: int, phase: int, epoch: int, count: int) -> tuple[int, ...]:
    return tuple(randomness.permutation(seed, "pretrain/shards", phase, epoch, n=count))


def validation_rows(seed: int, shard_rows: Sequence[int], count: int) -> tuple[tuple[int, NumberSet], ...]:
    """The `left_out` rows: `count` different rows, fewer than there are, drawn once for all phases."""
    ends = list(accumulate(shard_rows))
    total = ends[-1] if ends else 0
    chosen: set[int] = set()
    draw = 0
    while len(chosen) < count:
        chosen.add(randomness.integer(seed, "pretrain/validation", draw, low=0, high=total))
        draw += 1
    found: dict[int, list[int]] = {}
    for number in chosen:
        shard = bisect_right(ends, number)
        found.setdefault(shard, []).append(number - (ends[shard] - shard_rows[shard]))
    return tuple((shard, NumberSet.of(rows)) for shard, rows in sorted(found.items()))


def rows_of_phases(config: PretrainConfig, manifest: Manifest) -> tuple[RowsOfPhase, ...]:
    """The rows of each phase of the run. Raises InvalidInput when validation leaves no rows to train."""
    shard_rows = tuple(shard.rows for shard in manifest.shards)
    count = config.train.validation_rows
    if count >= manifest.rows:
        message = f"{count} rows for validation leave none of the {manifest.rows} of {config.data.shards}"
        raise InvalidInput([Fault(where="train.validation_rows", message=message)])
    left_out = validation_rows(config.seed, shard_rows, count)
    return tuple(
        RowsOfPhase(
            seed=config.seed,
            phase=place,
            samples=phase.samples,
            shard_rows=shard_rows,
            left_out=left_out,
            caption_weights=config.data.caption_weights,
        )
        for place, phase in enumerate(config.phases)
    )


def share(batch: int, *, rank: int, world: int) -> int:
    """The number of a step's `batch` rows for this trainer. Shares differ by one row at most."""
    return -(-(rank + 1) * batch // world) - -(-rank * batch // world)


def part_of(
    portions: Iterable[Portion], rows_of: RowsOfPhase, *, batch: int, rank: int, world: int
) -> Iterator[Portion]:
    """The rows of one trainer in a pinned order: of each `batch` rows in the order of training, trainer `rank` has
    the rows after those of the trainers before it."""
    place = 0
    for portion in portions:
        mine = []
        for row in rows_of.in_order(portion):
            if place % batch * world // batch == rank:
                mine.append(row)
            place += 1
        if mine:
            yield replace(portion, rows=NumberSet.of(mine))
