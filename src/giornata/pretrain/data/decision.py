"""The decision which examined rows are kept, and in which shard: a function of the rows, in whatever order they came.

Rows are divided into partitions by their keys; partitions that do not fit into memory wait in files. Kept rows are
sorted by key within their stretch of the source. As a key is a hash of the picture, every shard is a sample of the
whole stretch. The quarantine lists the refused rows, without their pictures.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
import pyarrow.parquet as pq

from giornata.pretrain.data import columns
from giornata.pretrain.data.examination import DETAIL, EXAMINED, ORDINAL, PIECE, PLACE, SOURCE, Refusal
from giornata.pretrain.data.partitions import ROW, Partitions
from giornata.pretrain.data.storage import Storage

QUARANTINE_FOLDER = "quarantine"
QUARANTINE = pa.schema({name: pa.string() for name in (SOURCE, PLACE, columns.REASON, DETAIL, columns.CAPTION)})
QUARANTINE_ROWS_PER_FILE = 100_000
MEMORY_BYTES = 4 << 30
ORDINAL_BITS = 32
"""A row's number has the piece above these bits and the ordinal in them, so that numbers sort as the source does."""
_BATCH_ROWS = 1 << 16
_REASONS = pa.array([str(each) for each in Refusal])
_NUMBER = [PIECE, ORDINAL]
_READ = {"batch_size": _BATCH_ROWS, "batch_readahead": 1, "fragment_readahead": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The rows of a stretch that are written: those not dropped, in shards by their keys. `rows` is their number.

    The values are arrays, so that Ray's tasks share them.
    """

    rows: int
    dropped_pieces: np.ndarray
    dropped_ordinals: np.ndarray
    first_keys: np.ndarray

    def dropped_of(self, piece: int) -> set[int]:
        """Ordinals of the rows of a piece that are not written."""
        start = int(np.searchsorted(self.dropped_pieces, piece, side="left"))
        stop = int(np.searchsorted(self.dropped_pieces, piece, side="right"))
        return set(self.dropped_ordinals[start:stop].tolist())

    def shard_of(self, key: bytes) -> int:
        """The number of the key's shard within the stretch."""
        return int(np.searchsorted(self.first_keys, np.array(key, "S32"), side="right")) - 1


class Decision:
    """The decision over rows of EXAMINED. A row with the bytes of an earlier one is refused."""

    def __init__(self, examined: pds.Dataset, folder: Path, *, memory_bytes: int = MEMORY_BYTES) -> None:
        """Rows that do not fit into memory lie in `folder`, which is empty. The fragments of `examined` are in the
        source's order."""
        self._examined, self.rows = examined, examined.count_rows()
        by_key = Partitions(folder, self.rows, memory_bytes)
        found = pa.concat_tables([self._broken(by_key), *map(_equal, by_key)])
        self._refused = found.sort_by("number").combine_chunks()
        self._numbers = self._refused["number"].to_numpy()

    def _broken(self, by_key: Partitions) -> pa.Table:
        """The rows that the examination refused. The others are added to `by_key`."""
        broken = []
        names = [*_NUMBER, columns.KEY, columns.REASON]
        for batch in self._examined.to_batches(columns=names, **_READ):
            sound = pc.equal(batch[columns.REASON], "")
            refused = batch.filter(pc.invert(sound))
            broken.append(_refused(_numbers(refused), refused[columns.REASON]))
            kept = batch.filter(sound)
            rows = np.empty(kept.num_rows, ROW)
            rows["number"], rows["key"] = _numbers(kept), _keys(kept)
            by_key.add(rows)
        return pa.concat_tables([_refused(np.empty(0, np.int64), ""), *broken])

    def counts(self) -> dict[str, int]:
        counts = np.bincount(self._refused["reason"].to_numpy(), minlength=len(_REASONS)).tolist()
        return {reason: count for reason, count in sorted(zip(_REASONS.to_pylist(), counts, strict=True)) if count}

    def refused(self) -> Iterator[pa.RecordBatch]:
        """Rows of QUARANTINE, in the order of the source. A duplicate's detail names what is kept instead."""
        numbers, names = self._names()
        for fragment in self._examined.get_fragments():
            read = [*_NUMBER, SOURCE, PLACE, DETAIL, columns.CAPTION]
            table, found = _chosen(fragment, read, self._numbers)
            refused = self._refused.take(pa.array(np.searchsorted(self._numbers, found)))
            kept = refused["kept"].fill_null(-1).to_numpy()
            places = np.searchsorted(numbers, kept)
            like = names.take(pa.array(places, mask=kept < 0)).cast(pa.string()).fill_null("")
            detail = pc.if_else(pc.equal(table[DETAIL], ""), like, table[DETAIL])
            reasons = _REASONS.take(refused["reason"].combine_chunks())
            values = [table[SOURCE], table[PLACE], reasons, detail, table[columns.CAPTION]]
            yield from pa.table(values, names=QUARANTINE.names).to_batches()

    def _names(self) -> tuple[np.ndarray, pa.ChunkedArray]:
        """Sorted numbers of the rows that are kept instead of others, and their names in the quarantine."""
        wanted = np.unique(self._refused["kept"].drop_null().to_numpy())
        numbers: list[np.ndarray] = [np.empty(0, np.int64)]
        names = [pa.array([], pa.large_string())]
        for fragment in self._examined.get_fragments() if len(wanted) else ():
            table, found = _chosen(fragment, [*_NUMBER, SOURCE, PLACE], wanted)
            joined = pc.binary_join_element_wise("like", table[SOURCE], table[PLACE], " ")
            numbers.append(found)
            names.extend(pc.utf8_trim_whitespace(joined).cast(pa.large_string()).chunks)
        together = np.concatenate(numbers)
        order = np.argsort(together)
        return together[order], pa.chunked_array(names).take(pa.array(order))

    def keep(self, pieces: range, rows_per_shard: int) -> Keep:
        """The rows to write of the stretch of these pieces."""
        first = int(np.searchsorted(self._numbers, pieces.start << ORDINAL_BITS))
        dropped = self._numbers[first : int(np.searchsorted(self._numbers, pieces.stop << ORDINAL_BITS))]
        within = (pc.field(PIECE) >= pieces.start) & (pc.field(PIECE) < pieces.stop)
        batches = self._examined.to_batches(columns=[*_NUMBER, columns.KEY], filter=within, **_READ)
        keys = [_keys(batch)[~np.isin(_numbers(batch), dropped, kind="sort")] for batch in batches]
        ordered = np.sort(np.concatenate([np.empty(0, "S32"), *keys]))
        return Keep(
            rows=len(ordered),
            dropped_pieces=dropped >> ORDINAL_BITS,
            dropped_ordinals=dropped & ((1 << ORDINAL_BITS) - 1),
            first_keys=ordered[::rows_per_shard].copy(),
        )


def _equal(rows: np.ndarray) -> pa.Table:
    """Refuse all rows of a key but the first in the source."""
    ordered = rows[np.lexsort((rows["number"], rows["key"]))]
    keys, numbers = ordered["key"], ordered["number"]
    again: np.ndarray = np.append(np.zeros(min(1, len(keys)), bool), keys[1:] == keys[:-1])
    firsts: np.ndarray = np.repeat(numbers[~again], np.diff(np.flatnonzero(~again), append=len(keys)))
    return _refused(numbers[again], str(Refusal.DUPLICATE), firsts[again])


def _refused(numbers: np.ndarray, reasons: str | pa.Array, kept: np.ndarray | None = None) -> pa.Table:
    named = pa.repeat(reasons, len(numbers)) if isinstance(reasons, str) else reasons
    codes = pc.index_in(named, value_set=_REASONS).cast(pa.int8())
    instead = pa.nulls(len(numbers), pa.int64()) if kept is None else pa.array(kept, pa.int64())
    return pa.table({"number": pa.array(numbers, pa.int64()), "reason": codes, "kept": instead})


def _chosen(fragment: pds.Fragment, names: list[str], wanted: np.ndarray) -> tuple[pa.Table, np.ndarray]:
    """The fragment's rows with one of these numbers, sorted by number, and the numbers."""
    table = fragment.to_table(schema=EXAMINED, columns=names)
    numbers = _numbers(table)
    places = np.flatnonzero(np.isin(numbers, wanted, kind="sort"))
    places = places[np.argsort(numbers[places])]
    return table.take(pa.array(places)), numbers[places]


def _numbers(rows: pa.RecordBatch | pa.Table) -> np.ndarray:
    numbers: np.ndarray = rows[PIECE].to_numpy().astype(np.int64) << ORDINAL_BITS | rows[ORDINAL].to_numpy()
    return numbers


def _keys(batch: pa.RecordBatch) -> np.ndarray:
    column = batch[columns.KEY]
    whole = np.frombuffer(column.buffers()[1] or b"", "S32")
    return whole[column.offset : column.offset + len(column)]


def write_quarantine(
    out: Storage, refused: Iterable[pa.RecordBatch], *, rows_per_file: int = QUARANTINE_ROWS_PER_FILE
) -> None:
    """Write rows of QUARANTINE below `out`. Every file is full but the last."""
    for number, rows in enumerate(_filled(refused, rows_per_file)):
        sink = pa.BufferOutputStream()
        pq.write_table(rows.combine_chunks(), sink, compression="zstd")
        out.write(f"{QUARANTINE_FOLDER}/part-{number:05}.parquet", memoryview(sink.getvalue()))


def _filled(batches: Iterable[pa.RecordBatch], rows_per_file: int) -> Iterator[pa.Table]:
    waiting = QUARANTINE.empty_table()
    for batch in batches:
        waiting = pa.concat_tables([waiting, pa.table(batch).cast(QUARANTINE)])
        while waiting.num_rows >= rows_per_file:
            yield waiting.slice(0, rows_per_file)
            waiting = waiting.slice(rows_per_file)
    if waiting.num_rows:
        yield waiting
