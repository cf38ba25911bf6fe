"""Attempts and money of jobs, as their owners see them: those of an imported job come from where it ran."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import AttemptRecord, JobRecord
from giornata.domain.jobs.job import IMPORTED_FROM


def with_imported(
    tx: Transaction, jobs: Iterable[JobRecord], found: Sequence[AttemptRecord]
) -> tuple[Mapping[str, Sequence[AttemptRecord]], Mapping[str, int]]:
    """Return the attempts of each job, and what each imported job cost where it ran, in micro-dollars.

    `found` are the attempts at these jobs in this installation. Nothing more is asked where no job was imported.
    """
    attempts: dict[str, Sequence[AttemptRecord]] = defaultdict(list)
    for attempt in found:
        attempts[attempt.job_id] = [*attempts[attempt.job_id], attempt]
    imported = [job.id for job in jobs if IMPORTED_FROM in job.labels]
    pasts = tx.imported_jobs.pasts(imported) if imported else {}
    attempts |= {job_id: past.attempts for job_id, past in pasts.items() if past.attempts}
    return attempts, {job_id: past.cost_micro_usd for job_id, past in pasts.items()}
