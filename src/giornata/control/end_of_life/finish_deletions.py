"""The loop that finishes deletions which a request could not finish, or whose server died."""

from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.end_of_life.delete_job import finish_job
from giornata.control.end_of_life.delete_project import finish_project
from giornata.control.end_of_life.record_deletion import JOB
from giornata.control.ports.user_queries.end_of_life_store import DeletionRecord

AT_ONCE = 50


def finish_deletions(ctx: Context) -> int:
    """Go on with deletions that are not finished; return how many are now. Raises Unavailable; repeat it later."""
    with ctx.store.read() as tx:
        unfinished = tx.deletions.unfinished(limit=AT_ONCE)
    return sum(_finish(ctx, each) for each in unfinished)


def _finish(ctx: Context, deletion: DeletionRecord) -> bool:
    if deletion.what == JOB:
        return finish_job(ctx, deletion)[1]
    asked = Caller(project_id=deletion.project_id, scopes=frozenset(), key_id=deletion.asked_by)
    return finish_project(ctx, asked, deletion)[1]
