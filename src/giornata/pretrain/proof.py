"""What a run trained, counted against what it was to train.

Two sources: the ledgers in the newest checkpoint, which every start goes by, and the trace, which trainers write
while they train and nobody goes by (`tracking.trace_rows`). Where there is a trace, it is what counts here.
"""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.feeding.ledger import Ledger
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase, rows_of_phases
from giornata.pretrain.run_storage import progress_of, run_storage
from giornata.pretrain.trace import FOLDER
from giornata.pretrain.training.progress import Progress
from giornata.pretrain.training.spending import spent_usd
from giornata.pretrain.use_counts import Counted, count_uses
from giornata.protocol.pretraining import PretrainConfig


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

    def to_json(self) -> dict[str, Any]:
        """As an object."""
        return asdict(self)


def proof_of(config: PretrainConfig) -> Proof:
    """Of the run as its storage has it now."""
    source, run = source_manifest(config), run_storage(config)
    phases, progress = rows_of_phases(config, source), progress_of(run)
    ledgers = [Ledger.from_json(each, rows_of) for each, rows_of in zip(progress.ledgers, phases, strict=False)]
    planned = sum(rows_of.samples for rows_of in phases)
    kept_out = sum(ledger.quarantined for ledger in ledgers)
    traced = config.tracking.trace_rows
    counted = _by_traces(run, phases, progress) if traced else _by_ledgers(ledgers)
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


def _by_ledgers(ledgers: Iterable[Ledger]) -> Counted:
    return Counted(once=sum(ledger.done - ledger.quarantined for ledger in ledgers), more=0, undone=0, attempts=0)


def _by_traces(run: Storage, phases: Sequence[RowsOfPhase], progress: Progress) -> Counted:
    with tempfile.TemporaryDirectory(prefix="giornata-proof-") as folder:
        return count_uses(Path(run.path()) / FOLDER, phases, until_step=progress.step, folder=Path(folder))
