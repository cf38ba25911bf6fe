"""Follow files that an audit puts into doubt into the jobs that use them.

A retry has the checkpoints of the job before it. A continuation, a training with `init_lora` and an order read files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from giornata.control.ports.node_queries.audit_store import FileReader, ReplayAuditRow
from giornata.control.ports.node_queries.work_rows import JobRow
from giornata.control.ports.store import Transaction
from giornata.protocol.events import EventType

MOST_COMMITS = 10_000
MOST_TOLD = 1000
"""Jobs that get a notice about one verdict. There is no end to the orders that may draw with one LoRA."""
BEFORE_ALL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtedJob:
    """A job whose work is in doubt since the checkpoint of this audit; without one, from its beginning."""

    job: JobRow
    agreed: ReplayAuditRow | None

    @property
    def step(self) -> int:
        """The step to which the job goes back."""
        return 0 if self.agreed is None else self.agreed.to_step


def retries_in_doubt(tx: Transaction, doubted: Sequence[DoubtedJob]) -> Iterator[DoubtedJob]:
    """Yield each retry that goes on from a checkpoint in doubt, and retries of it. They go back to where the job that
    they retry goes back to: an audit of their own steps tells nothing of those before. Each job is held.
    """
    left = list(doubted)
    while left:
        earlier = left.pop(0)
        for job_id in tx.audits.retries(earlier.job.id, after_step=earlier.step):
            job = tx.jobs.lock(job_id)
            if job is not None:
                left.append(DoubtedJob(job=job, agreed=earlier.agreed))
                yield left[-1]


def tell_readers(tx: Transaction, doubted: Sequence[DoubtedJob], *, at_ms: int) -> None:
    """Tell each job that reads a file in doubt, and those that read what came of it. Nothing is ended: its owner
    decides.
    """
    known = {each.job.id for each in doubted}
    told = 0
    left = [(each.job.project_id, _made(tx, each.job.id, after_step=each.step)) for each in doubted]
    while left:
        project_id, files = left.pop(0)
        for reader in tx.audits.readers(project_id, sorted(files), limit=MOST_TOLD):
            if reader.job_id in known or told >= MOST_TOLD:
                continue
            known.add(reader.job_id)
            told += 1
            _tell(tx, reader, at_ms=at_ms)
            left.append((reader.project_id, _made(tx, reader.job_id, after_step=BEFORE_ALL)))


def _made(tx: Transaction, job_id: str, *, after_step: int) -> frozenset[str]:
    """Return the hashes of the job's checkpoints after this step, and of its files."""
    committed = tx.audits.commits(job_id, limit=MOST_COMMITS)
    told = {each.sha256 for each in committed if each.step > after_step}
    kept = {row.blob.sha256 for row in tx.checkpoints.all(job_id) if row.step > after_step}
    return frozenset(told | kept) | {row.sha256 for row in tx.artifacts.of_job(job_id)}


def _tell(tx: Transaction, reader: FileReader, *, at_ms: int) -> None:
    message = f"an audit contradicts a machine that made the file {reader.sha256[:12]}, which this job reads"
    data = {"name": "input-in-doubt", "role": reader.role, "sha256": reader.sha256, "message": message}
    tx.events.add(reader.job_id, reader.project_id, EventType.NOTICE, None, data, at_ms)
