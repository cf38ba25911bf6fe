"""The decision which examined rows are kept, and in which shard: a function of the rows, in whatever order they came.

DuckDB finds the rows with equal keys; what does not fit into its memory waits on the disk. Kept rows are sorted by
key within their stretch of the source. As a key is a hash of the picture, every shard is a sample of the whole
stretch. The quarantine lists the refused rows, without their pictures.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq

from giornata.pretrain.data import columns
from giornata.pretrain.data.examination import DETAIL, ORDINAL, PIECE, PLACE, SOURCE, Refusal
from giornata.pretrain.data.storage import Storage

QUARANTINE_FOLDER = "quarantine"
QUARANTINE = pa.schema({name: pa.string() for name in (SOURCE, PLACE, columns.REASON, DETAIL, columns.CAPTION)})
QUARANTINE_ROWS_PER_FILE = 100_000
MEMORY_BYTES = 4 << 30
ORDINAL_BITS = 32
"""A row's number has the piece above these bits and the ordinal in them, so that numbers sort as the source does."""
_NUMBERED = f"(SELECT {PIECE}::BIGINT << {ORDINAL_BITS} | {ORDINAL} AS number, * FROM examined)"
_REFUSED = f"""
CREATE TABLE refused AS
WITH sound AS (SELECT number, key FROM {_NUMBERED} WHERE reason = ''),
firsts AS (SELECT key, min(number) AS kept FROM sound GROUP BY key HAVING count(*) > 1)
SELECT number, reason, NULL AS kept FROM {_NUMBERED} WHERE reason <> ''
UNION ALL
SELECT number, '{Refusal.DUPLICATE}', kept FROM sound JOIN firsts USING (key) WHERE number <> kept
"""
_LISTED = f"""
SELECT own.source, own.place, refused.reason,
    if(own.detail = '', coalesce('like ' || trim(first.source || ' ' || first.place), ''), own.detail) AS detail,
    own.caption
FROM refused JOIN {_NUMBERED} AS own USING (number) LEFT JOIN {_NUMBERED} AS first ON first.number = refused.kept
ORDER BY refused.number
"""
_KEPT_KEYS = f"""
SELECT key FROM {_NUMBERED} ANTI JOIN refused USING (number) WHERE {PIECE} >= $start AND {PIECE} < $stop ORDER BY key
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The rows of a stretch that are written: those not dropped, in shards by their keys. `rows` is their number.

    `dropped` are sorted numbers of rows. The values are arrays, so that Ray's tasks share them.
    """

    rows: int
    dropped: np.ndarray
    first_keys: np.ndarray

    def dropped_of(self, piece: int) -> set[int]:
        """Ordinals of the rows of a piece that are not written."""
        first = piece << ORDINAL_BITS
        start, stop = (int(np.searchsorted(self.dropped, each)) for each in (first, first + (1 << ORDINAL_BITS)))
        return set((self.dropped[start:stop] - first).tolist())

    def shard_of(self, key: bytes) -> int:
        """The number of the key's shard within the stretch."""
        return int(np.searchsorted(self.first_keys, np.array(key, "S32"), side="right")) - 1


class Decision:
    """The decision over rows of EXAMINED. A row with the bytes of an earlier one is refused."""

    def __init__(self, examined: pds.Dataset, folder: Path, *, memory_bytes: int = MEMORY_BYTES) -> None:
        """DuckDB keeps in `folder` what memory cannot hold: the folder outlives all questions."""
        import duckdb

        self.rows = examined.count_rows()
        memory = f"{memory_bytes >> 20}MiB"
        self._database = duckdb.connect(config={"temp_directory": str(folder), "memory_limit": memory})
        self._database.register("examined", examined)
        self._database.execute(_REFUSED)

    def counts(self) -> dict[str, int]:
        """The number of refused rows by reason."""
        return dict(self._database.execute("SELECT reason, count(*) FROM refused GROUP BY 1 ORDER BY 1").fetchall())

    def refused(self, at_once: int = QUARANTINE_ROWS_PER_FILE) -> Iterator[pa.RecordBatch]:
        """Rows of QUARANTINE, in the order of the source. A duplicate's detail names what is kept instead."""
        yield from self._database.sql(_LISTED).to_arrow_reader(at_once)

    def keep(self, pieces: range, rows_per_shard: int) -> Keep:
        """The rows to write of the stretch of these pieces."""
        span = {"start": pieces.start, "stop": pieces.stop}
        keys = self._database.sql(_KEPT_KEYS, params=span).to_arrow_table()["key"]
        numbers = "SELECT number FROM refused WHERE number >= $start AND number < $stop ORDER BY number"
        span = {name: place << ORDINAL_BITS for name, place in span.items()}
        dropped = self._database.execute(numbers, span).fetchnumpy()["number"]
        first_keys = np.array(keys[::rows_per_shard].to_pylist(), "S32")
        return Keep(rows=len(keys), dropped=dropped, first_keys=first_keys)


def write_quarantine(out: Storage, decision: Decision, *, rows_per_file: int = QUARANTINE_ROWS_PER_FILE) -> None:
    """Write what the decision refused below `out`. Every file is full but the last."""
    for number, rows in enumerate(decision.refused(rows_per_file)):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches([rows], QUARANTINE), sink, compression="zstd")
        out.write(f"{QUARANTINE_FOLDER}/part-{number:05}.parquet", memoryview(sink.getvalue()))
