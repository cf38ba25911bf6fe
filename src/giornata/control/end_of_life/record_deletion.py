"""Write the line that stays of what was deleted: one for each job, dataset and project.

The audit log has a row for what somebody asked for, and none for what went with it.
"""

import logging
from dataclasses import replace

from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.end_of_life_store import DeletionRecord

log = logging.getLogger("giornata.deletions")
JOB, DATASET, PROJECT = "job", "dataset", "project"


def record_deletion(
    tx: Transaction, ctx: Context, caller: Caller, *, what: str, target_id: str, project_id: str
) -> DeletionRecord:
    """Write who deleted what, in the transaction that deletes it. It is unfinished until nothing is left."""
    line = DeletionRecord(
        id=0,
        project_id=project_id,
        what=what,
        target_id=target_id,
        asked_by=caller.maker,
        asked_at_ms=ctx.clock.now_ms(),
    )
    number = tx.deletions.begin(line)
    log.info("%s %s of project %s is deleted by %s", what, target_id, project_id, caller.maker)
    return replace(line, id=number)
