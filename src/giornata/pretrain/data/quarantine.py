"""The list of what was kept out, beside the shards: source, place, reason, detail, caption; never the picture."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from giornata.pretrain.data import columns
from giornata.pretrain.data.examination import DETAIL, PLACE, SOURCE
from giornata.pretrain.data.storage import Storage

FOLDER = "quarantine"
ROWS_PER_FILE = 100_000
QUARANTINE = pa.schema({name: pa.string() for name in (SOURCE, PLACE, columns.REASON, DETAIL, columns.CAPTION)})


def write_quarantine(out: Storage, refused: Iterable[pa.RecordBatch], *, rows_per_file: int = ROWS_PER_FILE) -> None:
    """Write rows of QUARANTINE as they come; every file is full but for the last."""
    for number, rows in enumerate(_filled(refused, rows_per_file)):
        sink = pa.BufferOutputStream()
        pq.write_table(rows.combine_chunks(), sink, compression="zstd")
        out.write(f"{FOLDER}/part-{number:05}.parquet", memoryview(sink.getvalue()))


def _filled(batches: Iterable[pa.RecordBatch], rows_per_file: int) -> Iterator[pa.Table]:
    waiting = QUARANTINE.empty_table()
    for batch in batches:
        waiting = pa.concat_tables([waiting, pa.table(batch).cast(QUARANTINE)])
        while waiting.num_rows >= rows_per_file:
            yield waiting.slice(0, rows_per_file)
            waiting = waiting.slice(rows_per_file)
    if waiting.num_rows:
        yield waiting
