"""Which examined rows are kept, and in which shard: a function of the rows alone, in whatever order they came.

The rows are a table on the disk, and DuckDB finds what is equal and sorts what is kept: with as much memory as it is
given, however many rows there are; what does not fit waits in its folder. Kept rows are sorted by key within their
stretch of the source. As a key is a hash of the picture, every shard is a sample of the whole stretch.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds

from giornata.pretrain.data.filters import Refusal
from giornata.pretrain.data.likeness import find_alike
from giornata.pretrain.data.refused_rows import NUMBER, ORDINAL_BITS, listed
from giornata.pretrain.data.sorted_tables import SortedTables, threads_that_can_sort

MEMORY_BYTES = 4 << 30
_BROKEN = f"INSERT INTO found SELECT {NUMBER}, reason, NULL FROM examined WHERE reason <> ''"
_WHOLE = f"SELECT key, {NUMBER}, pixels, hash FROM examined WHERE reason = ''"

# What is known of a picture is the same for equal bytes: max() takes any of them.
_SOUND = """
INSERT INTO sound SELECT key, min(number), max(pixels), max(hash)
FROM whole WHERE key >= $low AND key < $high GROUP BY key"""

_EQUAL = """
INSERT INTO found SELECT w.number, $reason, s.number
FROM whole w JOIN (SELECT key, number FROM sound WHERE key >= $low AND key < $high) s USING (key)
WHERE w.key >= $low AND w.key < $high AND w.number <> s.number"""

_ALIKE = "INSERT INTO found SELECT number, $reason, kept FROM near"
_UNLIKE = """
INSERT INTO unlike SELECT number, key FROM kept WHERE number >= $low AND number < $high
AND number NOT IN (SELECT number FROM refused WHERE number >= $low AND number < $high)"""

_DROPPED = "SELECT number FROM refused WHERE number >= $low AND number < $high ORDER BY number"
_KEYS = "SELECT key FROM kept WHERE number >= $low AND number < $high ORDER BY key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Which rows of a stretch are written where: those that are not dropped, by their keys. Arrays, so that tasks
    share them. `rows` are kept."""

    rows: int
    dropped_pieces: np.ndarray
    dropped_ordinals: np.ndarray
    first_keys: np.ndarray

    def dropped_of(self, piece: int) -> set[int]:
        """Numbers of the rows of a piece that are not written."""
        start = int(np.searchsorted(self.dropped_pieces, piece, side="left"))
        stop = int(np.searchsorted(self.dropped_pieces, piece, side="right"))
        return set(self.dropped_ordinals[start:stop].tolist())

    def shard_of(self, key: bytes) -> int:
        """The place of the key's shard among those of the stretch."""
        return int(np.searchsorted(self.first_keys, np.array(key, "S32"), side="right")) - 1


class Decision:
    """Of rows of EXAMINED. Leaves out what has the bytes of a row before it in the source and, if asked, what looks
    like another; of pictures that look alike, the one with the most pixels stays."""

    def __init__(
        self,
        examined: pds.Dataset,
        folder: Path,
        *,
        hash_distance: int | None,
        memory_bytes: int = MEMORY_BYTES,
        threads: int | None = None,
    ) -> None:
        """`folder` is for what does not fit into memory; at most `threads` work at a time (as many as there are
        cores). The fragments of `examined` follow one another in the order of the source."""
        self._examined, self._rows = examined, examined.count_rows()
        most = threads or os.cpu_count() or 1
        sorting = threads_that_can_sort(self._rows, memory_bytes=memory_bytes, most=most)
        self._tables = SortedTables.opened(folder, memory_bytes=memory_bytes, threads=sorting)
        try:
            self._tables.connection.register("examined", examined)
            self._decide(hash_distance)
        except BaseException:
            self._tables.close()
            raise

    def _decide(self, hash_distance: int | None) -> None:
        tables = self._tables
        tables.run("CREATE TABLE found (number BIGINT, reason VARCHAR, kept BIGINT)")
        tables.run(_BROKEN)
        _leave_out_equal(tables)
        if hash_distance is not None:
            find_alike(tables, hash_distance)
            tables.run(_ALIKE, {"reason": str(Refusal.NEAR_DUPLICATE)})
            tables.drop("near")
        tables.sort("refused", "FROM found", "number")
        tables.drop("found")
        tables.sort("kept", "SELECT number, key FROM sound", "number")
        tables.drop("sound")
        if hash_distance is not None:
            _leave_out_alike(tables)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.close()

    def rows(self) -> int:
        """All that were examined."""
        return self._rows

    def counts(self) -> dict[str, int]:
        """Reason to number of rows that were refused for it."""
        query = "SELECT reason, count(*) FROM refused GROUP BY reason ORDER BY reason"
        return {str(reason): int(count) for reason, count in self._tables.connection.execute(query).fetchall()}

    def refused(self) -> Iterator[pa.RecordBatch]:
        """Rows of QUARANTINE, in the order of the source. A duplicate's detail names what is kept instead."""
        yield from listed(self._tables, self._examined)

    def keep(self, pieces: range, rows_per_shard: int) -> Keep:
        """Of the stretch of these pieces."""
        part = {"low": pieces.start << ORDINAL_BITS, "high": pieces.stop << ORDINAL_BITS}
        numbers = [batch.column(0).to_numpy() for batch in self._tables.batches(_DROPPED, part)]
        dropped = np.concatenate(numbers) if numbers else np.array([], np.int64)
        first_keys, rows = list[np.ndarray](), 0
        for batch in self._tables.batches(_KEYS, part):
            keys = np.frombuffer(b"".join(batch.column(0).to_pylist()), dtype="S32")
            first_keys.append(keys[-rows % rows_per_shard :: rows_per_shard].copy())
            rows += len(keys)
        return Keep(
            rows=rows,
            dropped_pieces=dropped >> ORDINAL_BITS,
            dropped_ordinals=dropped & ((1 << ORDINAL_BITS) - 1),
            first_keys=np.concatenate(first_keys) if first_keys else np.array([], "S32"),
        )


def _leave_out_equal(tables: SortedTables) -> None:
    """Into `sound` one row of each key, its first in the source; the others into `found`."""
    tables.sort("whole", _WHOLE, "key")
    tables.run("CREATE TABLE sound (key BLOB, number BIGINT, pixels BIGINT, hash UBIGINT)")
    for part in tables.ranges("whole", "key"):
        tables.run(_SOUND, part)
        tables.run(_EQUAL, {**part, "reason": str(Refusal.DUPLICATE)})
    tables.drop("whole")


def _leave_out_alike(tables: SortedTables) -> None:
    """From `kept`."""
    tables.run("CREATE TABLE unlike (number BIGINT, key BLOB)")
    for part in tables.ranges("kept", "number"):
        tables.run(_UNLIKE, part)
    tables.drop("kept")
    tables.run("ALTER TABLE unlike RENAME TO kept")
