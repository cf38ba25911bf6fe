"""What is listed of rows that are not kept: read from the examined rows, one fragment of them after the other."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.dataset as pds

from giornata.pretrain.data import columns
from giornata.pretrain.data.examination import DETAIL, EXAMINED, ORDINAL, PIECE, PLACE, SOURCE
from giornata.pretrain.data.sorted_tables import Range, SortedTables

ORDINAL_BITS = 32
NUMBER = f"({PIECE}::BIGINT << {ORDINAL_BITS}) | {ORDINAL} AS number"
"""A row's piece and its ordinal in one: numbers sort as the source does."""

_BATCH_ROWS = 16_384
_OF_WANTED = (PIECE, ORDINAL, SOURCE, PLACE)
_OF_LISTED = (*_OF_WANTED, DETAIL, columns.CAPTION)

_PART = f"CREATE OR REPLACE TEMP TABLE part AS SELECT {NUMBER}, * EXCLUDE ({PIECE}, {ORDINAL}) FROM fragment"

_WANTED = "SELECT kept, number FROM refused WHERE kept IS NOT NULL"
_NAMED = """
INSERT INTO named SELECT w.number, trim('like ' || p.source || ' ' || p.place)
FROM wanted w JOIN part p ON w.kept = p.number WHERE w.kept >= $low AND w.kept < $high"""

_LISTED = """
SELECT p.source, p.place, r.reason,
       CASE WHEN p.detail = '' THEN coalesce(n.name, '') ELSE p.detail END AS detail,
       p.caption
FROM part p JOIN (SELECT * FROM refused WHERE number >= $low AND number < $high) r USING (number)
LEFT JOIN (SELECT * FROM names WHERE number >= $low AND number < $high) n USING (number)
ORDER BY p.number"""


def listed(tables: SortedTables, examined: pds.Dataset) -> Iterator[pa.RecordBatch]:
    """Rows of QUARANTINE for `refused` (number, reason, kept), in the order of the fragments and within them in that
    of the source."""
    tables.sort("wanted", _WANTED, "kept")
    tables.run("CREATE OR REPLACE TABLE named (number BIGINT, name VARCHAR)")
    for part in _parts(tables, examined, _OF_WANTED):
        tables.run(_NAMED, part)
    tables.sort("names", "FROM named", "number")
    tables.drop("wanted", "named")
    for part in _parts(tables, examined, _OF_LISTED):
        yield from tables.batches(_LISTED, part)
    tables.drop("names", "part")


def _parts(tables: SortedTables, examined: pds.Dataset, names: tuple[str, ...]) -> Iterator[Range]:
    """Each fragment as the table `part`, and its range of numbers."""
    for fragment in examined.get_fragments():
        scanner = fragment.scanner(
            schema=EXAMINED, columns=list(names), batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1
        )
        tables.connection.register("fragment", scanner.to_reader())
        tables.run(_PART)
        tables.connection.unregister("fragment")
        low, high = tables.ends("part", "number")
        if low is not None:
            yield {"low": low, "high": high + 1}
