"""Read what machines have made of an audited stretch: the claim of the audited one, and the results of others.

Two results can be compared when both were computed under the same conditions. A checkpoint tells its conditions in
its own header, and its sha256 covers them.
"""

import json
from collections.abc import Generator
from contextlib import closing

from giornata.control.attempts.auditing.stretch_conditions import StretchConditions, conditions_in
from giornata.control.context import Context
from giornata.control.models.stored_header import lacks_header
from giornata.control.ports.node_queries.audit_store import ReplayAuditRow
from giornata.control.ports.node_queries.work_rows import CheckpointRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.domain.errors import BlobMissing, InvalidInput
from giornata.domain.generation.model_header import read_header
from giornata.domain.jobs.audits import AuditResult

HEADER_KEY = "giornata"
EXCUSED = "no machine that tried it had an equal fingerprint"
OWN_CONDITIONS = (
    EXCUSED,
    "the conditions changed between its checkpoints",
    "it was trained in a shared batch",
)
"""Why a stretch is not audited, by the word of its machine. Only audits of earlier versions have the last two."""


def claimed_result(tx: Transaction, audit: ReplayAuditRow, *, total_steps: int | None) -> AuditResult:
    """Return what the audited attempt claims: bytes, losses, and at the job's end its files."""
    losses = tx.audits.losses(
        audit.job_id, attempt_number=audit.attempt_number, from_step=audit.from_step, to_step=audit.to_step
    )
    rows = tx.artifacts.of_job(audit.job_id) if audit.to_step == total_steps else ()
    files = {row.name: row.sha256 for row in rows if row.attempt_id == audit.attempt_id}
    return AuditResult(sha256=audit.claimed_sha256, losses=losses, files=files)


def run_result(tx: Transaction, audit: ReplayAuditRow, job: JobRecord) -> AuditResult | None:
    """Return what the job of an audit has made of the stretch; None when it told nothing that can be read."""
    attempt = None if job.attempt_id is None else tx.attempts.get(job.attempt_id)
    sha256, files = job.result.get("sha256"), job.result.get("files")
    if attempt is None or not isinstance(sha256, str) or not isinstance(files, dict):
        return None
    losses = tx.audits.losses(job.id, attempt_number=attempt.number, from_step=audit.from_step, to_step=audit.to_step)
    named = {str(name): str(told) for name, told in files.items()}
    return AuditResult(sha256=sha256, losses=losses, files=named)


def run_conditions(job: JobRecord) -> StretchConditions | None:
    """Return the conditions under which the job of an audit ran, as its node told."""
    return conditions_in(job.result)


def claimed_conditions(ctx: Context, checkpoint: CheckpointRow) -> StretchConditions | None:
    """Return the conditions in the header of a stored checkpoint; None when it has no such header, or is lost.

    Reads from storage. Raises Unavailable.
    """
    beginning = b""
    try:
        with closing(_chunks(ctx, checkpoint)) as chunks:
            while lacks_header(beginning, where="checkpoint") and (chunk := next(chunks, None)) is not None:
                beginning += chunk
        metadata = read_header(beginning, where="checkpoint").metadata
        told = json.loads(metadata[HEADER_KEY])
    except (InvalidInput, BlobMissing, KeyError, ValueError, RecursionError):
        return None
    return conditions_in(told)


def _chunks(ctx: Context, checkpoint: CheckpointRow) -> Generator[bytes, None, None]:
    yield from ctx.blobs.read(checkpoint.blob.key)
