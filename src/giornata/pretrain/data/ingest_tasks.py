"""The two passes over a source that Ray Data spreads over a cluster: examine every row, then write the kept rows.

Tasks read pieces of the source themselves, and not through Ray's readers: a row needs its place in the source for the
quarantine, and a damaged file must cost no more than its own rest. Ray runs a lost task again, with the same result.
"""

import hashlib
import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import ray
import ray.data
from ray.data.context import DataContext, ShuffleStrategy

from giornata.diffusion.encode.decoding import upright_size
from giornata.pretrain.data import columns
from giornata.pretrain.data.decision import Keep
from giornata.pretrain.data.examination import EXAMINED, examined_rows
from giornata.pretrain.data.manifest import Shard
from giornata.pretrain.data.shards import shard_bytes, write_shard
from giornata.pretrain.data.source_rows import Raw, SourceDamaged, rows_of
from giornata.pretrain.data.sources import Piece, Source, parts_of
from giornata.pretrain.data.storage import Storage
from giornata.protocol.pretraining import Ingest

EXAMINED_AT_ONCE = 8192
PICTURE_BYTES_AT_ONCE = 16 << 20
PART, PIECES = "part", "pieces"  # a part's number, and its (number, piece) pairs, pickled
_SHARD = pa.field(columns.SHARD, pa.int32())


def examine_parts(source: Source, options: Ingest, examined: Storage) -> Iterator[int]:
    """Examine the whole source, each part into a file of EXAMINED in `examined`. Files that are there are kept.

    Yields the number of rows of each part, in any order.
    """
    found = _parts(source, range(len(source.pieces))).map_batches(
        _examine, batch_size=None, batch_format="pyarrow", fn_args=(source.storage, options, examined)
    )
    for batch in found.iter_batches(batch_size=None, batch_format="pyarrow"):
        yield from batch["rows"].to_pylist()


def examined_dataset(source: Source, examined: Storage) -> pds.Dataset:
    """The files that `examine_parts` wrote, in the order of the source."""
    files = [examined.path(_part_name(number)) for number in range(len(parts_of(len(source.pieces))))]
    return pds.dataset(files, schema=EXAMINED, format="parquet", filesystem=examined.filesystem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Neighboring pieces whose rows are written together, which rows are kept, and the number of the first shard."""

    pieces: range
    keep: Keep
    first_shard: int


def write_stretch(source: Source, options: Ingest, stretch: Stretch, out: Storage) -> Iterator[Shard]:
    """Write the shards of a stretch. Yields each when it is whole, in any order."""
    given = (source.storage, ray.put(stretch), options)
    # The other shuffles hold rows in actors of their own, one for each partition, or were slower in trials
    DataContext.get_current().shuffle_strategy = ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    rows = _parts(source, stretch.pieces).map_batches(_pick, batch_size=None, batch_format="pyarrow", fn_args=given)
    shards = rows.groupby(columns.SHARD).map_groups(_write, batch_format="pyarrow", fn_args=(out,))
    for row in shards.iter_rows():
        yield Shard(**row)


def _parts(source: Source, pieces: range) -> ray.data.Dataset:
    """A block for each part of these pieces: a task receives its own pieces only."""
    return ray.data.from_arrow(
        [
            packed_part(number, pieces[part.start : part.stop], source.pieces)
            for number, part in enumerate(parts_of(len(pieces)))
        ]
    )


def packed_part(number: int, numbers: Sequence[int], pieces: Sequence[Piece]) -> pa.Table:
    return pa.table({PART: [number], PIECES: [pickle.dumps([(each, pieces[each]) for each in numbers])]})


def unpacked_pieces(part: pa.Table) -> list[tuple[int, Piece]]:
    return [pair for packed in part[PIECES].to_pylist() for pair in pickle.loads(packed)]  # noqa: S301 - packed here


def _part_name(number: int) -> str:
    return f"part-{number:05}.parquet"


# ---- in the tasks ----


def _examine(part: pa.Table, storage: Storage, options: Ingest, examined: Storage) -> pa.Table:
    name = _part_name(part[PART][0].as_py())
    if examined.exists(name):
        with examined.open(name) as stream:
            return pa.table({"rows": [pq.ParquetFile(stream).metadata.num_rows]})
    sink, rows = pa.BufferOutputStream(), 0
    with pq.ParquetWriter(sink, EXAMINED, compression="zstd") as writer:
        for batch in _examined(part, storage, options):
            writer.write_table(batch)
            rows += batch.num_rows
    examined.write(name, memoryview(sink.getvalue()))
    return pa.table({"rows": [rows]})


def _examined(part: pa.Table, storage: Storage, options: Ingest) -> Iterator[pa.Table]:
    waiting: list[dict[str, object]] = []
    for number, piece in unpacked_pieces(part):
        rows = rows_of(storage, piece, options)
        for row in examined_rows(rows, options, piece=number, name=piece.names[0]):
            waiting.append(row)
            if len(waiting) == EXAMINED_AT_ONCE:
                yield pa.Table.from_pylist(waiting, EXAMINED)
                waiting = []
    yield pa.Table.from_pylist(waiting, EXAMINED)


def _pick(part: pa.Table, storage: Storage, stretch_ref: "ray.ObjectRef", options: Ingest) -> Iterator[pa.Table]:
    stretch: Stretch = ray.get(stretch_ref)
    schema = pa.schema([_SHARD, *columns.source_schema(several=options.max_captions > 1)])
    waiting: list[dict[str, object]] = []
    size_bytes = 0
    for number, piece in unpacked_pieces(part):
        for raw in _kept(storage, piece, stretch.keep.dropped_of(number), options):
            waiting.append(_sharded(raw, stretch))
            size_bytes += len(raw.image or b"")
            if size_bytes >= PICTURE_BYTES_AT_ONCE:
                yield pa.Table.from_pylist(waiting, schema)
                waiting, size_bytes = [], 0
    yield pa.Table.from_pylist(waiting, schema)


def _kept(storage: Storage, piece: Piece, dropped: set[int], options: Ingest) -> Iterator[Raw]:
    with suppress(SourceDamaged):  # at the same row as before; that one is in the quarantine
        for ordinal, raw in enumerate(rows_of(storage, piece, options)):
            if ordinal not in dropped:
                yield raw


def _sharded(raw: Raw, stretch: Stretch) -> dict[str, object]:
    content = raw.image or b""
    key = hashlib.sha256(content).digest()
    height, width = upright_size(content)
    return {
        columns.SHARD: stretch.first_shard + stretch.keep.shard_of(key),
        columns.KEY: key.hex(),
        columns.IMAGE: content,
        columns.CAPTION: raw.caption,
        columns.CAPTIONS: raw.captions or (raw.caption,),
        columns.WIDTH: width,
        columns.HEIGHT: height,
    }


def _write(rows: pa.Table, out: Storage) -> pa.Table:
    if not rows.num_rows:
        return pa.Table.from_pylist([])
    number = rows[columns.SHARD][0].as_py()
    return pa.Table.from_pylist([asdict(write_shard(out, number, shard_bytes(rows), rows.num_rows))])
