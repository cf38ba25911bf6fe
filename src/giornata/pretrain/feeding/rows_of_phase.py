"""Which rows a phase trains, and in which order: a function of the manifest, the seed and the phase.

An epoch takes every shard once, in an order of its own, and of a shard every row once, in an order of its own. A
phase takes as many whole epochs as fit into its samples, and of the one after those the first rows. A *portion* is
one shard in one epoch; portions are numbered through the phase, so that (portion, row) names one use of one row.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter

from giornata.diffusion import randomness
from giornata.pretrain.data.intervals import Intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Rows of one shard, to be trained in one epoch. `rows` are numbers within the shard."""

    number: int
    epoch: int
    shard: int
    rows: Intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOfPhase:
    """`shard_rows` is the number of rows of each shard; `left_out` rows (of validation: shard and its rows, by
    shard) are never trained. `phase` is its place in the schedule. `caption_weights` say how a use of a row chooses
    among its captions (giornata.pretrain.encoding.caption_choice)."""

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
        """All of the phase, in order. Their rows are `samples` together."""
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
        """The portion's rows in the order of training. What was left away does not change the order of the rest."""
        kept = portion.rows
        whole = Intervals.span(0, self.shard_rows[portion.shard])
        return [row for row in self._shuffled(portion.epoch, portion.shard, whole) if row in kept]

    def _wanted(self, shard: int) -> Intervals:
        whole = Intervals.span(0, self.shard_rows[shard])
        place = bisect_left(self.left_out, shard, key=itemgetter(0))
        found = place < len(self.left_out) and self.left_out[place][0] == shard
        return whole - self.left_out[place][1] if found else whole

    def _shuffled(self, epoch: int, shard: int, rows: Sequence[int] | Intervals) -> list[int]:
        count = self.shard_rows[shard]
        order = randomness.permutation(self.seed, "pretrain/rows", self.phase, epoch, shard, n=count)
        return [row for row in order if row in rows]


@lru_cache(maxsize=4)
def _shard_order(seed: int, phase: int, epoch: int, count: int) -> tuple[int, ...]:
    return tuple(randomness.permutation(seed, "pretrain/shards", phase, epoch, n=count))


def validation_rows(seed: int, shard_rows: Sequence[int], count: int) -> tuple[tuple[int, Intervals], ...]:
    """`count` rows that are kept for validation, as `left_out`: drawn once for all phases, without repeats."""
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
