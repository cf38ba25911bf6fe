"""The two passes over a source that Ray Data spreads over a cluster: examine every row, then write what is kept.

Tasks read pieces of the source themselves, and not through Ray's readers: a row needs its place in the source for the
quarantine, and a file that breaks off in the middle must cost no more than its own rest. A task that is lost is run
again by Ray and gives the same.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import ray
import ray.data
from ray.data.context import DataContext, ShuffleStrategy

from giornata.diffusion.decoding import upright_size
from giornata.pretrain import columns
from giornata.pretrain.decision import Decision, Rows
from giornata.pretrain.examination import EXAMINED, examined_rows
from giornata.pretrain.filters import filters_of
from giornata.pretrain.manifest import Shard
from giornata.pretrain.shards import write_shard
from giornata.pretrain.source_rows import Raw, SourceDamaged, rows_of
from giornata.pretrain.sources import Source
from giornata.pretrain.storage import Storage
from giornata.protocol.pretraining import Ingest

MOST_TASKS = 10_000
EXAMINED_AT_ONCE = 1024
PICTURE_BYTES_AT_ONCE = 16 << 20

SHARDED = pa.schema([pa.field(columns.SHARD, pa.int32()), *columns.SOURCE])


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Which rows are written where: those that are not dropped, by their keys. Arrays, so that tasks share them."""

    dropped_pieces: np.ndarray
    dropped_ordinals: np.ndarray
    first_keys: np.ndarray

    @classmethod
    def of(cls, rows: Rows, decision: Decision, rows_per_shard: int) -> "Keep":
        """What was decided."""
        dropped = np.flatnonzero(decision.reasons)
        pieces, ordinals = rows.column("piece")[dropped], rows.column("ordinal")[dropped]
        order = np.lexsort((ordinals, pieces))
        first_keys = decision.first_keys(rows_per_shard)
        return cls(dropped_pieces=pieces[order], dropped_ordinals=ordinals[order], first_keys=first_keys)

    def dropped_of(self, piece: int) -> set[int]:
        """Numbers of the rows of a piece that are not written."""
        start = int(np.searchsorted(self.dropped_pieces, piece, side="left"))
        stop = int(np.searchsorted(self.dropped_pieces, piece, side="right"))
        return set(self.dropped_ordinals[start:stop].tolist())

    def shard_of(self, key: bytes) -> int:
        """The number of the key's shard."""
        return int(np.searchsorted(self.first_keys, np.array(key, "S32"), side="right")) - 1


def examined(source: Source, options: Ingest) -> Iterator[pa.Table]:
    """Rows of EXAMINED, of the whole source, in no order."""
    found = _pieces(source).map_batches(
        _examine, batch_size=None, batch_format="pyarrow", fn_args=(ray.put(source), options)
    )
    for batch in found.iter_batches(batch_size=None, batch_format="pyarrow"):
        yield batch.cast(EXAMINED)


def written(source: Source, options: Ingest, keep: Keep, out: Storage) -> Iterator[Shard]:
    """Write the shards, and tell of each when it is there, in no order."""
    arguments = (ray.put(source), ray.put(keep), options)
    with _sorted_shuffle():
        rows = _pieces(source).map_batches(_pick, batch_size=None, batch_format="pyarrow", fn_args=arguments)
        shards = rows.groupby(columns.SHARD).map_groups(_write, batch_format="pyarrow", fn_args=(out,))
        for batch in shards.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from (Shard(**row) for row in batch.to_pylist())


def _pieces(source: Source) -> ray.data.Dataset:
    """Their numbers."""
    return ray.data.range(len(source.pieces), override_num_blocks=min(len(source.pieces), MOST_TASKS))


@contextmanager
def _sorted_shuffle() -> Iterator[None]:
    # The other shuffles hold rows in actors of their own, one for each partition, or were slower in trials
    context = DataContext.get_current()
    before = context.shuffle_strategy
    context.shuffle_strategy = ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    try:
        yield
    finally:
        context.shuffle_strategy = before


# ---- in the tasks ----


def _examine(numbers: pa.Table, source_ref: "ray.ObjectRef", options: Ingest) -> Iterator[pa.Table]:
    source: Source = ray.get(source_ref)
    filters = filters_of(options)
    waiting: list[dict[str, object]] = []
    for number in numbers["id"].to_pylist():
        piece = source.pieces[number]
        rows = rows_of(source.storage, piece, options)
        perceptual = options.dedupe_hash_distance is not None
        for row in examined_rows(rows, filters, piece=number, name=piece.names[0], perceptual=perceptual):
            waiting.append(row)
            if len(waiting) == EXAMINED_AT_ONCE:
                yield pa.Table.from_pylist(waiting, EXAMINED)
                waiting = []
    yield pa.Table.from_pylist(waiting, EXAMINED)


def _pick(
    numbers: pa.Table, source_ref: "ray.ObjectRef", keep_ref: "ray.ObjectRef", options: Ingest
) -> Iterator[pa.Table]:
    source, keep = ray.get(source_ref), ray.get(keep_ref)
    waiting: list[dict[str, object]] = []
    size_bytes = 0
    for number in numbers["id"].to_pylist():
        for raw in _kept(source, number, keep.dropped_of(number), options):
            waiting.append(_sharded(raw, keep))
            size_bytes += len(raw.image or b"")
            if size_bytes >= PICTURE_BYTES_AT_ONCE:
                yield pa.Table.from_pylist(waiting, SHARDED)
                waiting, size_bytes = [], 0
    yield pa.Table.from_pylist(waiting, SHARDED)


def _kept(source: Source, number: int, dropped: set[int], options: Ingest) -> Iterator[Raw]:
    with suppress(SourceDamaged):  # at the same row as before; that one is in the quarantine
        for ordinal, raw in enumerate(rows_of(source.storage, source.pieces[number], options)):
            if ordinal not in dropped:
                yield raw


def _sharded(raw: Raw, keep: Keep) -> dict[str, object]:
    content = raw.image or b""
    key = hashlib.sha256(content).digest()
    height, width = upright_size(content)
    return {
        columns.SHARD: keep.shard_of(key),
        columns.KEY: key.hex(),
        columns.IMAGE: content,
        columns.CAPTION: raw.caption,
        columns.WIDTH: width,
        columns.HEIGHT: height,
    }


def _write(rows: pa.Table, out: Storage) -> pa.Table:
    if not rows.num_rows:
        return pa.Table.from_pylist([])
    return pa.Table.from_pylist([asdict(write_shard(out, rows[columns.SHARD][0].as_py(), rows))])
