"""How often each planned use of a row was trained: one query over the trace.

Lines of an attempt count up to the step from which the next attempt went on; what came after it was trained again. A
line that a kill has cut is none. DuckDB keeps what does not fit into memory in a folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase

MEMORY = "1GB"
_QUERY = """
WITH lines AS (
    SELECT * FROM read_json(
        $files, format = 'newline_delimited', ignore_errors = true, filename = true,
        columns = {"from": 'BIGINT', ms: 'BIGINT', step: 'BIGINT', phase: 'BIGINT', uses: 'BIGINT[][]'}
    )
), attempts AS (
    SELECT filename, ms, "from", min("from") OVER (
        ORDER BY ms, "from" GROUPS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
    ) AS kept_until
    FROM lines WHERE ms IS NOT NULL
), steps AS (
    SELECT step, phase, uses, coalesce(step > kept_until, false) AS undone
    FROM lines JOIN attempts USING (filename) WHERE step IS NOT NULL
), uses AS (
    SELECT phase, unnest(uses) AS use FROM steps WHERE NOT undone AND step <= $until_step
), trained AS (
    SELECT phase, use[1] AS portion, use[2] AS row, count(*) AS times FROM uses GROUP BY ALL
), judged AS (
    SELECT trained.*, coalesce(trained.row >= planned.stop, true) AS strange
    FROM trained ASOF LEFT JOIN planned
    ON trained.phase = planned.phase AND trained.portion = planned.portion AND trained.row >= planned.start
)
SELECT
    count(*) FILTER (times = 1),
    count(*) FILTER (times > 1),
    (SELECT coalesce(sum(len(uses)), 0) FROM steps WHERE undone),
    (SELECT count(*) FROM (SELECT DISTINCT ms, "from" FROM attempts)),
    min({phase: phase, portion: portion, row: row}) FILTER (strange)
FROM judged
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Planned uses that were trained `once` and `more` than once, uses that were `undone`, and traced attempts."""

    once: int
    more: int
    undone: int
    attempts: int


def count_uses(trace: Path, phases: Sequence[RowsOfPhase], *, until_step: int, folder: Path) -> Counted:
    """Of all attempts in the folder `trace`, up to a step; what was trained after it is not safe yet. `folder` is an
    empty one. Raises RuntimeError for a use that is not planned."""
    import duckdb

    files = sorted(str(path) for path in trace.glob("*.jsonl"))
    if not files:
        return Counted(once=0, more=0, undone=0, attempts=0)
    with duckdb.connect(config={"temp_directory": str(folder), "memory_limit": MEMORY}) as database:
        database.register("planned", _planned(phases))
        given = {"files": files, "until_step": until_step}
        found = database.execute(_QUERY, given).fetchone() or (0, 0, 0, 0, None)
    once, more, undone, attempts, strange = found
    if strange is not None:
        use = strange["portion"], strange["row"]
        raise RuntimeError(f"a row was trained that is not of this run: {use} of phase {strange['phase']}")
    return Counted(once=once, more=more, undone=int(undone), attempts=attempts)


def _planned(phases: Sequence[RowsOfPhase]) -> pa.Table:
    """Spans of rows that each portion trains."""
    spans = [
        (each.phase, portion.number, *span)
        for each in phases
        for portion in each.portions()
        for span in portion.rows.spans
    ]
    columns = zip(*spans, strict=True)
    return pa.table(
        dict(zip(("phase", "portion", "start", "stop"), (pa.array(each) for each in columns), strict=True))
    )
