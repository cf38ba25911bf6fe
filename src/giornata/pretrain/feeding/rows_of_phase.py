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

from giornata.diffusion.draws import randomness
from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.manifest import Manifest
from giornata.protocol.pretraining import PretrainConfig


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of whole numbers. `spans` are its half-open intervals (start, stop), sorted, with gaps between them."""

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def span(cls, start: int, stop: int) -> Self:
        """The numbers start … stop - 1."""
        return cls(((start, stop),)) if start < stop else cls()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        return cls._joined((number, number + 1) for number in sorted(set(numbers)))

    @classmethod
    def _joined(cls, spans: Iterable[tuple[int, int]]) -> Self:
        joined: list[tuple[int, int]] = []
        for start, stop in spans:
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(stop, joined[-1][1])
            else:
                joined.append((start, stop))
        return cls(tuple(joined))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.spans:
            yield from range(start, stop)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.spans, (number, float("inf"))) - 1
        return place >= 0 and number < self.spans[place][1]

    def __or__(self, other: Self) -> Self:
        return self._joined(sorted((*self.spans, *other.spans)))

    def __sub__(self, other: Self) -> Self:
        return self.of(number for number in self if number not in other) if other else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Rows of one shard to train in one epoch. `rows` are numbers within the shard."""

    number: int
    epoch: int
    shard: int
    rows: Intervals


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
    left_out: tuple[tuple[int, Intervals], ...] = ()
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
                rows = Intervals.of(self._shuffled(epoch, shard, rows)[:left])
            if rows:
                yield Portion(number=number, epoch=epoch, shard=shard, rows=rows)
            left -= len(rows)
            number += 1

    def in_order(self, portion: Portion) -> list[int]:
        """The portion's rows in the order of training. Missing rows do not change the order of the others."""
        return self._shuffled(portion.epoch, portion.shard, portion.rows)

    def _wanted(self, shard: int) -> Intervals:
        whole = Intervals.span(0, self.shard_rows[shard])
        place = bisect_left(self.left_out, shard, key=itemgetter(0))
        found = place < len(self.left_out) and self.left_out[place][0] == shard
        return whole - self.left_out[place][1] if found else whole

    def _shuffled(self, epoch: int, shard: int, rows: Intervals) -> list[int]:
        count = self.shard_rows[shard]
        order = randomness.permutation(self.seed, "pretrain/rows", self.phase, epoch, shard, n=count)
        return [row for row in order if row in rows]


@lru_cache(maxsize=4)
def _shard_order(seed: int, phase: int, epoch: int, count: int) -> tuple[int, ...]:
    return tuple(randomness.permutation(seed, "pretrain/shards", phase, epoch, n=count))


def validation_rows(seed: int, shard_rows: Sequence[int], count: int) -> tuple[tuple[int, Intervals], ...]:
    """The `left_out` rows: `count` different rows, drawn once for all phases."""
    ends = list(accumulate(shard_rows))
    total = ends[-1] if ends else 0
    if count >= total > 0:
        raise ValueError(f"{count} rows for validation leave none of {total} to train")
    chosen: set[int] = set()
    draw = 0
    while len(chosen) < count:
        chosen.add(randomness.integer(seed, "pretrain/validation", draw, low=0, high=total))
        draw += 1
    found: dict[int, list[int]] = {}
    for number in chosen:
        shard = bisect_right(ends, number)
        found.setdefault(shard, []).append(number - (ends[shard] - shard_rows[shard]))
    return tuple((shard, Intervals.of(rows)) for shard, rows in sorted(found.items()))


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
            yield replace(portion, rows=Intervals.of(mine))
