"""The proof of a run: the uses of rows that it trained, counted against the planned ones.

Two sources: the ledgers in the newest checkpoint, which every start goes by, and the trace, which trainers write
while they train and nobody goes by (`tracking.trace_rows`). Where there is a trace, it is what counts here.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.feeding.ledger import Use, UseLedger
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase, rows_of_phases
from giornata.pretrain.run_state.committed import progress_of, run_storage
from giornata.pretrain.run_state.costs import spent_usd
from giornata.protocol.pretraining import PretrainConfig

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
FOLDER = "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Planned uses that were trained `once` and `more` than once, uses that were `undone`, and traced attempts."""

    once: int = 0
    more: int = 0
    undone: int = 0
    attempts: int = 0


def count_uses(trace: Path, phases: Sequence[RowsOfPhase], *, until_step: int, folder: Path) -> Counted:
    """Count the uses in the folder `trace` up to a step: later ones are in no checkpoint. DuckDB works in `folder`.

    Lines of an attempt count up to the step from which the next attempt went on: later ones were trained again. A
    line that a kill cut is skipped. Raises RuntimeError for a use that is not planned.
    """
    import duckdb

    files = sorted(str(path) for path in trace.glob("*.jsonl"))
    if not files:
        return Counted()
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
    """A table of the spans of rows that each portion trains."""
    spans = [
        (each.phase, portion.number, *span)
        for each in phases
        for portion in each.portions()
        for span in portion.rows.spans
    ]
    return pa.table([pa.array(each) for each in zip(*spans, strict=True)], ["phase", "portion", "start", "stop"])


class Trace:
    """The file in which one trainer writes the rows of each step, apart from the ledger.

        trace/<from>-<when>-<rank>.jsonl   {"from": step, "ms", "pid"}, then {"step", "phase", "uses"} for each step

    A line is with the operating system when its step ends: a killed process loses none.
    """

    def __init__(self, folder: Path, *, from_step: int, now_ms: int, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = (folder / f"{from_step:08d}-{now_ms}-{rank}.jsonl").open("w", encoding="utf-8")
        self._write({"from": from_step, "ms": now_ms, "pid": os.getpid()})

    def __call__(self, phase: int, step: int, uses: Sequence[Use]) -> None:
        self._write({"step": step, "phase": phase, "uses": list(uses)})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Uses of rows: one row in one epoch of one phase is one use.

    `trained_once` of the `planned` ones made one update; `repeated` made more; `unreadable` were drawn and could not
    be read; `left_out` were in steps that the guard left out; `missed` are in none of these, and none in a finished
    run. `undone` were trained by an attempt that was lost before its next checkpoint, and again after it.
    """

    finished: bool
    rows: int
    quarantined: int
    planned: int
    trained_once: int
    repeated: int
    unreadable: int
    left_out: int
    missed: int
    undone: int | None
    attempts: int | None
    steps: int
    spent_usd: float


def proof_of(config: PretrainConfig) -> Proof:
    """Count the uses of a run from its storage."""
    source, run = source_manifest(config), run_storage(config)
    phases, progress = rows_of_phases(config, source), progress_of(run)
    ledgers = [UseLedger.from_json(each, rows_of) for each, rows_of in zip(progress.ledgers, phases, strict=False)]
    planned = sum(rows_of.samples for rows_of in phases)
    kept_out = sum(ledger.quarantined for ledger in ledgers)
    traced = config.tracking.trace_rows
    counted = Counted(once=sum(ledger.done for ledger in ledgers) - kept_out)
    if traced:
        with tempfile.TemporaryDirectory(prefix="giornata-proof-") as folder:
            trace = Path(run.path()) / FOLDER
            counted = count_uses(trace, phases, until_step=progress.step, folder=Path(folder))
    return Proof(
        finished=progress.phase >= len(config.phases),
        rows=source.rows,
        quarantined=sum(source.quarantined.values()),
        planned=planned,
        trained_once=counted.once,
        repeated=counted.more,
        unreadable=kept_out - progress.skipped_rows,
        left_out=progress.skipped_rows,
        missed=planned - counted.once - counted.more - kept_out,
        undone=counted.undone if traced else None,
        attempts=counted.attempts if traced else None,
        steps=progress.step,
        spent_usd=spent_usd(run, progress),
    )
