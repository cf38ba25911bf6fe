"""What the whole run trains: the rows of each phase, and each trainer's part of a step."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.intervals import Intervals
from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.feeding.rows_of_phase import Portion, RowsOfPhase, validation_rows
from giornata.protocol.pretraining import PretrainConfig


def rows_of_phases(config: PretrainConfig, manifest: Manifest) -> tuple[RowsOfPhase, ...]:
    """In the order of the phases. Raises InvalidInput when validation leaves nothing to train."""
    shard_rows = tuple(shard.rows for shard in manifest.shards)
    held = config.train.validation_rows
    if held >= manifest.rows:
        message = f"{held} rows for validation leave none of the {manifest.rows} of {config.data.shards}"
        raise InvalidInput([Fault(where="train.validation_rows", message=message)])
    left_out = validation_rows(config.seed, shard_rows, held)
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
    """How many of a step's `batch` rows are this trainer's: they differ by one at most."""
    return -(-(rank + 1) * batch // world) - -(-rank * batch // world)


def part_of(
    portions: Iterable[Portion], rows_of: RowsOfPhase, *, batch: int, rank: int, world: int
) -> Iterator[Portion]:
    """The rows of one trainer, when every step's rows are pinned: of each `batch` in the order of training, in which
    trainer `rank` has the places that come after those of the trainers before it."""
    place = 0
    for portion in portions:
        mine = []
        for row in rows_of.in_order(portion):
            if place % batch * world // batch == rank:
                mine.append(row)
            place += 1
        if mine:
            yield replace(portion, rows=Intervals.of(mine))
