"""The list of what was kept out, beside the shards: source, place, reason, detail, caption; never the picture.

While a source is examined its rows wait in a local file, as nobody knows before the end which are duplicates.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from giornata.pretrain import columns
from giornata.pretrain.decision import Decision, reason_name
from giornata.pretrain.examination import DETAIL, EXAMINED, ORDINAL, PIECE, PLACE, SOURCE
from giornata.pretrain.storage import Storage

FOLDER = "quarantine"
ROWS_PER_FILE = 100_000
QUARANTINE = pa.schema({name: pa.string() for name in (SOURCE, PLACE, columns.REASON, DETAIL, columns.CAPTION)})

_KEPT_COLUMNS = [PIECE, ORDINAL, *QUARANTINE.names]


class Spool:
    """Examined rows in a local Parquet file, in the order in which they came."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = pq.ParquetWriter(path, pa.schema([EXAMINED.field(name) for name in _KEPT_COLUMNS]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, batch: pa.Table) -> None:
        """Rows of EXAMINED."""
        self._writer.write_table(batch.select(_KEPT_COLUMNS))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows; nothing can be added any more."""
        self._writer.close()
        with pq.ParquetFile(self._path) as file:
            yield from file.iter_batches()


def write_quarantine(out: Storage, spool: Spool, decision: Decision) -> None:
    """Write what the decision refuses, in the order of the source."""
    refused, names = _refused(spool, decision)
    refused = refused.sort_by([(PIECE, "ascending"), (ORDINAL, "ascending")])
    details = [
        detail or names.get(decision.like.get(place, -1), "")
        for place, detail in zip(refused["row"].to_pylist(), refused[DETAIL].to_pylist(), strict=True)
    ]
    told = refused.set_column(refused.schema.get_field_index(DETAIL), DETAIL, pa.array(details, pa.string()))
    for number, start in enumerate(range(0, told.num_rows, ROWS_PER_FILE)):
        sink = pa.BufferOutputStream()
        pq.write_table(told.select(QUARANTINE.names).slice(start, ROWS_PER_FILE), sink, compression="zstd")
        out.write(f"{FOLDER}/part-{number:05}.parquet", memoryview(sink.getvalue()))


def _refused(spool: Spool, decision: Decision) -> tuple[pa.Table, dict[int, str]]:
    """The refused rows, and the names of those that are kept in a duplicate's stead."""
    originals = np.unique(np.fromiter(decision.like.values(), np.int64, len(decision.like)))
    parts, names, first = [], dict[int, str](), 0
    for batch in spool.batches():
        own = decision.reasons[first : first + batch.num_rows]
        places = np.flatnonzero(own)
        chosen = pa.table(batch).take(pa.array(places))
        reasons = pa.array([reason_name(code) for code in own[places]], pa.string())
        chosen = chosen.set_column(chosen.schema.get_field_index(columns.REASON), columns.REASON, reasons)
        parts.append(chosen.append_column("row", pa.array(places + first)))
        for place in originals[(originals >= first) & (originals < first + batch.num_rows)]:
            row = batch.slice(int(place) - first, 1).to_pylist()[0]
            names[int(place)] = f"like {row[SOURCE]} {row[PLACE]}".strip()
        first += batch.num_rows
    empty = pa.schema([*(EXAMINED.field(name) for name in _KEPT_COLUMNS), pa.field("row", pa.int64())]).empty_table()
    return pa.concat_tables([empty, *parts]), names
