"""Delete what hangs on a deleted job, some rows at a time, and its bytes."""

from dataclasses import replace

from giornata.control.context import Context
from giornata.control.end_of_life.remove_bytes import Freed, remove_below, remove_bytes
from giornata.control.ports.user_queries.end_of_life_store import DeletionRecord, TakenRows

ROWS_AT_ONCE = 2_000
NO_VERDICT = "its job was deleted"
MOST_STEPS = 50
"""Steps of one call: a request must not last for minutes. A loop does the rest."""


def purge_job(ctx: Context, deletion: DeletionRecord) -> tuple[Freed, bool]:
    """Delete the rows and the bytes of a deleted job; return what was freed, and whether nothing is left.

    Any number of servers may do it at once, and may die at any time. Raises Unavailable.
    """
    freed, job_id, project_id = Freed(), deletion.target_id, deletion.project_id
    for _ in range(MOST_STEPS):
        with ctx.store.begin() as tx:
            # Audits first, as the loop that settles them locks them first.
            audited = tx.audits.give_up(job_id, message=NO_VERDICT, at_ms=ctx.clock.now_ms())
            taken = tx.deletions.take_job_rows(job_id, limit=ROWS_AT_ONCE)
            taken = replace(taken, rows=taken.rows + len(audited), sha256s=taken.sha256s | audited)
            waits = not taken.rows and tx.deletions.has_events(job_id)
        freed += remove_bytes(ctx, project_id, taken, asked_before_ms=deletion.asked_at_ms)
        if not taken.rows:
            return freed + _purge_attempts(ctx, deletion), not waits
    return freed, False


def _purge_attempts(ctx: Context, deletion: DeletionRecord) -> Freed:
    """Delete what the attempts left besides: checkpoints that later ones replaced, and what they made for others."""
    with ctx.store.begin() as tx:
        attempt_ids = tx.deletions.attempt_ids(deletion.target_id)
        caches = tx.deletions.take_caches(deletion.project_id, attempt_ids)
    project_id, before_ms = deletion.project_id, deletion.asked_at_ms
    freed = remove_bytes(ctx, project_id, TakenRows(sha256s=caches), asked_before_ms=before_ms)
    for attempt_id in attempt_ids:
        freed += remove_below(ctx, project_id, f"{project_id}/{attempt_id}/", asked_before_ms=before_ms)
    return freed
