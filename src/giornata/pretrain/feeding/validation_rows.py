"""The rows for validation: trainers read them and, where the mode needs it, encode them."""

import pyarrow as pa

from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.encoding.encode_rows import encoded_here
from giornata.pretrain.encoding.encoder import Encoder
from giornata.pretrain.feeding.feed import Batch, Feeder
from giornata.pretrain.feeding.read_portions import GROUP, packed, reader_of
from giornata.pretrain.feeding.rows_of_phase import Intervals, Portion, RowsOfPhase
from giornata.protocol.pretraining import PretrainConfig


def validation_batches(
    config: PretrainConfig,
    phase: int,
    rows_of: RowsOfPhase,
    source: Manifest,
    encoder: Encoder | None,
    *,
    rank: int,
    world: int,
) -> list[Batch]:
    """Return this trainer's part of the rows, in batches of one size. Every mode but offline needs `encoder`."""
    group = pa.table({GROUP: [packed(validation_portions(rows_of, rank=rank, world=world))]})
    reader, _ = reader_of(config, phase, rows_of, source)
    rows = sum(len(rows) for _, rows in rows_of.left_out)
    return list(Feeder(encoded_here(config, reader(group), encoder)).take(rows).batches) if rows else []


def validation_portions(rows_of: RowsOfPhase, *, rank: int, world: int) -> list[Portion]:
    """Every `world`-th row, from row number `rank` on."""
    every = [(shard, row) for shard, rows in rows_of.left_out for row in rows]
    mine: dict[int, list[int]] = {}
    for shard, row in every[rank::world]:
        mine.setdefault(shard, []).append(row)
    return [
        Portion(number=number, epoch=0, shard=shard, rows=Intervals.of(rows))
        for number, (shard, rows) in enumerate(mine.items())
    ]
