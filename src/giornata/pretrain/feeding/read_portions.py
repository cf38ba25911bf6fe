"""Read the rows of portions, in Ray's reading tasks, and the rows for validation, in trainers.

It imports no diffusers, which takes seconds.
"""

import pickle
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from giornata.pretrain.data import columns
from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.data.shards import read_rows
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encode_shards import encoded_here
from giornata.pretrain.encoding.encoded import encoded_manifest, latents_storage
from giornata.pretrain.encoding.encoder import Encoder
from giornata.pretrain.encoding.transforms import CaptionChoice, Cutting, cut_rows
from giornata.pretrain.feeding.feed import Batch, Feeder
from giornata.pretrain.feeding.rows_of_phase import NumberSet, Portion, RowsOfPhase
from giornata.protocol.pretraining import Mode, PretrainConfig

ROWS_AT_ONCE = 64
"""The rows of one table that a reading task yields."""
GROUP = "group"
"""The column of the portions of one task, pickled. Ray carries one small binary as it is; a table of lists would cost
a task to describe it."""
STORED = tuple(columns.LATENTS.names)
WITHOUT_TEXT = (*columns.STORED_LATENTS, columns.CAPTIONS)
OF_TEXT = (columns.KEY, columns.CAPTION, columns.PROMPT, columns.POOLED)
OF_PICTURES = (columns.KEY, columns.IMAGE, columns.CAPTION, columns.WIDTH, columns.HEIGHT, columns.CAPTIONS)


def packed(portions: Sequence[Portion]) -> bytes:
    """Pickle the portions of one task as a value of the column GROUP."""
    return pickle.dumps(list(portions))


def reader_of(
    config: PretrainConfig, phase: int, rows_of: RowsOfPhase, source: Manifest
) -> "tuple[ReadLatents | ReadPictures, Manifest]":
    """The reader of the configuration's mode, and the manifest of the shards that it reads.

    Raises InvalidInput when there are no latents for these options.
    """
    mode, resolution = config.encode.mode, config.phases[phase].resolution
    if mode in {Mode.OFFLINE, Mode.HYBRID}:
        read = STORED if mode is Mode.OFFLINE else WITHOUT_TEXT
        encoded = encoded_manifest(config, resolution, source)
        return ReadLatents(latents_storage(config, resolution), encoded.names, rows_of, read), encoded
    cutting = Cutting.of(config.data, seed=config.seed, resolution=resolution)
    return ReadPictures(Storage.at(config.data.shards), source.names, rows_of, cutting), source


class ReadLatents:
    """Reads the rows of portions from encoded shards.

    Wanted text that is not in a shard is in the shard of the same name in the folder `text` beside the resolution's.
    """

    def __init__(
        self, storage: Storage, names: tuple[str, ...], rows_of: RowsOfPhase, columns_read: tuple[str, ...]
    ) -> None:
        self._storage, self._names, self._rows_of, self._columns = storage, names, rows_of, columns_read

    def __call__(self, groups: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows of the portions as tables of at most ROWS_AT_ONCE rows."""
        for portion in portions_of(groups):
            text = self._text(portion)
            for table in _use_rows(portion, self._rows_of, self._storage, self._names, self._columns):
                if columns.PROMPT not in table.column_names:
                    table = _with_text(table, next(text) if columns.PROMPT in self._columns else None)  # noqa: PLW2901
                yield table.select(columns.FED.names).cast(columns.FED)

    def _text(self, portion: Portion) -> Iterator[pa.Table]:
        """The text's rows. The file is opened with the first of them, so only where the shard has no text."""
        order, name = self._rows_of.in_order(portion), self._names[portion.shard]
        yield from read_rows(self._storage.beside("text"), name, order, columns=OF_TEXT, at_once=ROWS_AT_ONCE)


def _with_text(table: pa.Table, text: pa.Table | None) -> pa.Table:
    """The rows with their text and its caption, or with empty bytes where there is no text."""
    if text is None:
        empty = pa.array([b""] * len(table), pa.binary())
        return table.append_column(columns.PROMPT, empty).append_column(columns.POOLED, empty)
    if not text.column(columns.KEY).equals(table.column(columns.KEY)):
        raise ValueError(
            "the text and the latents are of other rows: encode both again with `giornata pretrain encode`"
        )
    unreadable = pc.not_equal(table.column(columns.REASON), "")
    for name in (columns.CAPTION, columns.PROMPT, columns.POOLED):
        values = text.column(name)
        if name != columns.CAPTION and pc.any(unreadable).as_py():
            values = pc.if_else(unreadable, pa.scalar(b"", pa.binary()), values)
        table = table.drop_columns([name] if name in table.column_names else []).append_column(name, values)
    return table


class ReadPictures:
    """Reads the pictures of portions and cuts them for the encoder."""

    def __init__(self, storage: Storage, names: tuple[str, ...], rows_of: RowsOfPhase, cutting: Cutting) -> None:
        self._storage, self._names, self._rows_of, self._cutting = storage, names, rows_of, cutting

    def __call__(self, groups: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows of the portions as tables of at most ROWS_AT_ONCE rows."""
        for portion in portions_of(groups):
            for table in _use_rows(portion, self._rows_of, self._storage, self._names, OF_PICTURES):
                yield cut_rows(self._cutting, table.to_pylist(), epoch_in_draws=True)


def portions_of(groups: pa.Table) -> Iterator[Portion]:
    for group in groups.column(GROUP).to_pylist():
        yield from pickle.loads(group)  # noqa: S301 - `packed` made it


def _use_rows(
    portion: Portion, rows_of: RowsOfPhase, storage: Storage, names: tuple[str, ...], wanted: tuple[str, ...]
) -> Iterator[pa.Table]:
    """The portion's rows in order of training, with the columns of their use and the caption of this use."""
    order, done = rows_of.in_order(portion), 0
    choice = CaptionChoice(seed=rows_of.seed, weights=rows_of.caption_weights)
    for table in read_rows(storage, names[portion.shard], order, columns=wanted, at_once=ROWS_AT_ONCE):
        count = len(table)
        of_portion = ([each] * count for each in (portion.number, portion.epoch, portion.shard))
        values = *of_portion, order[done : done + count]
        done += count
        places = [(rows_of.phase, portion.epoch, key) for key in table.column(columns.KEY).to_pylist()]
        table = choice.taken(table, places)  # noqa: PLW2901
        for (name, kind), each in zip(columns.USE.items(), values, strict=True):
            table = table.append_column(pa.field(name, kind), pa.array(each, kind))  # noqa: PLW2901
        yield table


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
        Portion(number=number, epoch=0, shard=shard, rows=NumberSet.of(rows))
        for number, (shard, rows) in enumerate(mine.items())
    ]
