"""Which examined rows are kept, and in which shard: a function of the rows alone, in whatever order they came.

The rows are a table on the disk, and DuckDB finds what is equal and sorts what is kept: with as much memory as it is
given, however many rows there are; what does not fit waits in its folder. Kept rows are sorted by key within their
stretch of the source. As a key is a hash of the picture, every shard is a sample of the whole stretch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds

from giornata.pretrain.data.filters import Refusal
from giornata.pretrain.data.likeness import find_alike

MEMORY_BYTES = 4 << 30
ROWS_AT_ONCE = 100_000

_ORDINAL_BITS = 32

# A row's number is its piece and its ordinal in one: numbers sort as the source does.
_ROWS = "CREATE VIEW rows AS SELECT (piece::BIGINT << 32) | ordinal AS number, * FROM examined"

_REFUSED = """
CREATE TABLE refused AS SELECT number, reason, NULL::BIGINT AS kept FROM rows WHERE reason <> ''"""

# What is known of a picture is the same for equal bytes: max() takes any of them.
_SOUND = """
CREATE TABLE sound AS SELECT key, min(number) AS number, count(*) AS copies, max(pixels) AS pixels, max(hash) AS hash
FROM rows WHERE reason = '' GROUP BY key"""

_EQUAL = """
INSERT INTO refused SELECT r.number, $reason, s.number
FROM (SELECT number, key FROM rows WHERE reason = '') r
JOIN (SELECT key, number FROM sound WHERE copies > 1) s USING (key) WHERE r.number <> s.number"""

_LISTED = """
SELECT e.source, e.place, r.reason,
       CASE WHEN e.detail = '' AND k.number IS NOT NULL
            THEN trim('like ' || k.source || ' ' || k.place) ELSE e.detail END AS detail,
       e.caption
FROM rows e JOIN refused r ON e.number = r.number
LEFT JOIN (SELECT number, source, place FROM rows WHERE number IN (SELECT kept FROM refused)) k ON k.number = r.kept
ORDER BY r.number"""

_DROPPED = "SELECT number FROM refused WHERE number >= $start AND number < $stop ORDER BY number"
_KEYS = "SELECT key FROM sound WHERE number >= $start AND number < $stop ORDER BY key"


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
        """`folder` is for what does not fit into memory; it grows to about the size of the examined rows."""
        self._tables = duckdb.connect(str(folder / "rows.duckdb"), config=_limits(folder, memory_bytes, threads))
        self._tables.register("examined", examined)
        self._tables.execute(_ROWS)
        self._tables.execute(_REFUSED)
        self._tables.execute(_SOUND)
        self._tables.execute(_EQUAL, {"reason": str(Refusal.DUPLICATE)})
        if hash_distance is not None:
            find_alike(self._tables, hash_distance)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.close()

    def rows(self) -> int:
        """All that were examined."""
        found = self._tables.execute("SELECT count(*) FROM examined").fetchall()
        return int(found[0][0])

    def counts(self) -> dict[str, int]:
        """Reason to number of rows that were refused for it."""
        query = "SELECT reason, count(*) FROM refused GROUP BY reason ORDER BY reason"
        return {str(reason): int(count) for reason, count in self._tables.execute(query).fetchall()}

    def refused(self) -> Iterator[pa.RecordBatch]:
        """Rows of QUARANTINE, in the order of the source. A duplicate's detail names what is kept instead."""
        yield from self._batches(_LISTED, {})

    def keep(self, pieces: range, rows_per_shard: int) -> Keep:
        """Of the stretch of these pieces."""
        between = {"start": pieces.start << _ORDINAL_BITS, "stop": pieces.stop << _ORDINAL_BITS}
        numbers = [batch.column(0).to_numpy() for batch in self._batches(_DROPPED, between)]
        dropped = np.concatenate(numbers) if numbers else np.array([], np.int64)
        first_keys, rows = list[np.ndarray](), 0
        for batch in self._batches(_KEYS, between):
            keys = np.frombuffer(b"".join(batch.column(0).to_pylist()), dtype="S32")
            first_keys.append(keys[-rows % rows_per_shard :: rows_per_shard].copy())
            rows += len(keys)
        return Keep(
            rows=rows,
            dropped_pieces=dropped >> _ORDINAL_BITS,
            dropped_ordinals=dropped & ((1 << _ORDINAL_BITS) - 1),
            first_keys=np.concatenate(first_keys) if first_keys else np.array([], "S32"),
        )

    def _batches(self, query: str, values: dict[str, int]) -> Iterator[pa.RecordBatch]:
        yield from self._tables.sql(query, params=values).to_arrow_reader(ROWS_AT_ONCE)


def _limits(folder: Path, memory_bytes: int, threads: int | None) -> dict[str, str | int | bool | float | list[str]]:
    return {
        "memory_limit": f"{memory_bytes >> 20}MiB",
        "temp_directory": str(folder / "spilled"),
        "preserve_insertion_order": False,
        # How many rows there are is not known to it: joins keep in memory what is written last, which is the smaller
        "disabled_optimizers": "join_order,build_side_probe_side",
        # Nothing is fetched from anywhere
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        **({} if threads is None else {"threads": threads}),
    }
