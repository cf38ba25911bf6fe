"""Find how far the histories of many jobs reach, in few statements."""

from collections.abc import Collection, Mapping
from enum import StrEnum

from giornata.control.context import Context

JOBS_AT_ONCE = 1000


class HistoryPart(StrEnum):
    """A history of a job that event streams follow, or the step that the job is at."""

    EVENTS = "events"
    LOGS = "logs"
    PICTURES = "pictures"
    STEP = "step"


Heads = Mapping[tuple[HistoryPart, str], int]
"""The last id of each part of each job: of an event, of a log line, or the place of a picture; 0 without any. Of STEP
it is the step that the job is at.
"""


def read_heads(ctx: Context, followed: Collection[tuple[HistoryPart, str]]) -> Heads:
    """Return the heads of these parts of jobs. A job that is deleted or unknown is left out.

    Checks no permission: a stream reads the rows behind a head as its caller. Sends one statement for each part and
    JOBS_AT_ONCE jobs.
    """
    heads: dict[tuple[HistoryPart, str], int] = {}
    with ctx.store.read() as tx:
        readers = {
            HistoryPart.EVENTS: tx.job_reads.event_heads,
            HistoryPart.LOGS: tx.job_reads.log_heads,
            HistoryPart.PICTURES: tx.picture_orders.ended_heads,
            HistoryPart.STEP: tx.job_reads.steps,
        }
        for part, read in readers.items():
            job_ids = sorted({job_id for of, job_id in followed if of is part})
            for first in range(0, len(job_ids), JOBS_AT_ONCE):
                found = read(job_ids[first : first + JOBS_AT_ONCE])
                heads |= {(part, job_id): head for job_id, head in found.items()}
    return heads
