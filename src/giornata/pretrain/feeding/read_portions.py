"""Portions to rows: what Ray's reading tasks run. Imports no model code, for every node's CPUs start with it."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from giornata.pretrain.data import columns
from giornata.pretrain.data.intervals import Intervals
from giornata.pretrain.data.read_rows import read_rows
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.caption_choice import CaptionChoice
from giornata.pretrain.encoding.transforms import Cutting, cut_rows
from giornata.pretrain.feeding.rows_of_phase import Portion, RowsOfPhase

ROWS_AT_ONCE = 64
"""Rows that a reading task hands on at a time."""
SPANS = "spans"
PORTIONS = pa.schema(
    {
        columns.PORTION: pa.int64(),
        columns.EPOCH: pa.int32(),
        columns.SHARD: pa.int32(),
        SPANS: pa.list_(pa.int64()),
    }
)
"""SPANS: the starts and stops of intervals of rows, one after the other."""
GROUP = "group"
"""Of the graph's source: PORTIONS of one task as a file of Arrow's. One small binary is a row that Ray carries as it
is, where tables of lists would each cost a task of their own to be described."""
STORED = tuple(columns.LATENTS.names)
WITHOUT_TEXT = (*(name for name in STORED if name not in {columns.PROMPT, columns.POOLED}), columns.CAPTIONS)
OF_TEXT = (columns.KEY, columns.CAPTION, columns.PROMPT, columns.POOLED)
OF_PICTURES = (columns.KEY, columns.IMAGE, columns.CAPTION, columns.WIDTH, columns.HEIGHT, columns.CAPTIONS)


def packed(portions: list[Portion]) -> bytes:
    """One GROUP."""
    rows = [
        {
            columns.PORTION: portion.number,
            columns.EPOCH: portion.epoch,
            columns.SHARD: portion.shard,
            SPANS: [end for span in portion.rows.spans for end in span],
        }
        for portion in portions
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, PORTIONS) as stream:
        stream.write_table(pa.Table.from_pylist(rows, schema=PORTIONS))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def unpacked(group: bytes) -> list[Portion]:
    """The portions of a GROUP."""
    with pa.ipc.open_stream(group) as stream:
        rows = stream.read_all().to_pylist()
    return [
        Portion(
            number=row[columns.PORTION],
            epoch=row[columns.EPOCH],
            shard=row[columns.SHARD],
            rows=Intervals(tuple(zip(row[SPANS][::2], row[SPANS][1::2], strict=True))),
        )
        for row in rows
    ]


class ReadLatents:
    """Portions to their rows of encoded shards. Text that is wanted and not in a shard is in the shard of the same
    name in the folder `text`, beside that of the resolution."""

    def __init__(
        self, storage: Storage, names: tuple[str, ...], rows_of: RowsOfPhase, columns_read: tuple[str, ...]
    ) -> None:
        self._storage, self._names, self._rows_of, self._columns = storage, names, rows_of, columns_read

    def __call__(self, groups: pa.Table) -> Iterator[pa.Table]:
        """Tables of ROWS_AT_ONCE rows."""
        for portion in _portions(groups):
            text = self._text(portion)
            for table in _use_rows(portion, self._rows_of, self._storage, self._names, self._columns):
                if columns.PROMPT not in table.column_names:
                    table = _with_text(table, next(text) if columns.PROMPT in self._columns else None)  # noqa: PLW2901
                yield table.select(columns.FED.names).cast(columns.FED)

    def _text(self, portion: Portion) -> Iterator[pa.Table]:
        """Opened with the first of its rows, and so only where the shard has none."""
        order, name = self._rows_of.in_order(portion), self._names[portion.shard]
        yield from read_rows(self._storage.beside("text"), name, order, columns=OF_TEXT, at_once=ROWS_AT_ONCE)


def _with_text(table: pa.Table, text: pa.Table | None) -> pa.Table:
    """The rows with their text, and with the caption that the text is of; with empty bytes where there is no text."""
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
    """Portions to pictures that are cut for the encoder."""

    def __init__(self, storage: Storage, names: tuple[str, ...], rows_of: RowsOfPhase, cutting: Cutting) -> None:
        self._storage, self._names, self._rows_of, self._cutting = storage, names, rows_of, cutting

    def __call__(self, groups: pa.Table) -> Iterator[pa.Table]:
        """Tables of ROWS_AT_ONCE rows."""
        for portion in _portions(groups):
            for table in _use_rows(portion, self._rows_of, self._storage, self._names, OF_PICTURES):
                yield cut_rows(self._cutting, table.to_pylist(), epoch_in_draws=True)


def _portions(groups: pa.Table) -> Iterator[Portion]:
    for group in groups.column(GROUP).to_pylist():
        yield from unpacked(group)


def _use_rows(
    portion: Portion, rows_of: RowsOfPhase, storage: Storage, names: tuple[str, ...], wanted: tuple[str, ...]
) -> Iterator[pa.Table]:
    """The portion's rows of its shard, in order of training, with the columns of their use and the caption that this
    use takes."""
    order, done = rows_of.in_order(portion), 0
    choice = CaptionChoice(seed=rows_of.seed, weights=rows_of.caption_weights)
    for table in read_rows(storage, names[portion.shard], order, columns=wanted, at_once=ROWS_AT_ONCE):
        use = {
            columns.PORTION: [portion.number] * len(table),
            columns.EPOCH: [portion.epoch] * len(table),
            columns.SHARD: [portion.shard] * len(table),
            columns.ROW: order[done : done + len(table)],
        }
        done += len(table)
        places = [(rows_of.phase, portion.epoch, key) for key in table.column(columns.KEY).to_pylist()]
        table = choice.taken(table, places)  # noqa: PLW2901
        for name, values in use.items():
            table = table.append_column(columns.FED.field(name), pa.array(values, columns.FED.field(name).type))  # noqa: PLW2901
        yield table
