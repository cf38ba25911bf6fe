"""Read what machines have made of an audited stretch: the claim of the audited one, and the results of others.

Two results can be compared when both were computed under the same conditions. A checkpoint tells its conditions in
its own header, and its sha256 covers them.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from giornata.control.context import Context
from giornata.control.models.stored_header import lacks_header
from giornata.control.ports.node_queries.audit_store import ReplayAuditRow
from giornata.control.ports.node_queries.work_rows import CheckpointRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.domain.errors import BlobMissing, InvalidInput
from giornata.domain.generation.model_header import read_header
from giornata.domain.jobs.audits import AuditResult
from giornata.protocol.node.joint import joint_key
from giornata.protocol.specs import TrainSpec

HEADER_KEY = "giornata"
SHARED_BATCH = "joint"
CHANGED_BETWEEN = "the conditions changed between its checkpoints"
IN_A_SHARED_BATCH = "it was trained in a shared batch"
OWN_CONDITIONS = (CHANGED_BETWEEN, IN_A_SHARED_BATCH)
"""Why a stretch is not audited, by the word of the machine that trained it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchConditions:
    """The fingerprints that a checkpoint's weights went through, each with its first step."""

    history: tuple[Mapping[str, Any], ...]

    def why_not_repeatable(self, from_step: int) -> str:
        """Return why no machine alone can repeat the steps after `from_step`; empty when one can."""
        if any(entry.get("from_step", 0) > from_step for entry in self.history):
            return CHANGED_BETWEEN
        latest = self.history[-1].get("fingerprint", {}) if self.history else {}
        return IN_A_SHARED_BATCH if SHARED_BATCH in latest else ""

    def contradiction(self, audit: ReplayAuditRow, training: Mapping[str, Any], *, beside: bool) -> str:
        """Return what cannot be, by what the server knows; empty when nothing is known against it. `beside` says that
        the node had another attempt at that time.
        """
        if any(entry["from_step"] > audit.to_step for entry in self.history):
            return "its conditions begin after its last step"
        later = [entry for entry in self.history if entry["from_step"] > audit.from_step]
        shared = [each["fingerprint"][SHARED_BATCH] for each in later or self.history[-1:] if _is_shared(each)]
        if shared and _never_shares(training):
            return "it tells of a shared batch, and its job never shares one"
        if not beside and any(isinstance(each, dict) and _width(each) > 1 for each in shared):
            return "it tells of other jobs in its batch, and its node had none"
        return ""


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
    return _conditions(job.result)


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
    return _conditions(told)


def _chunks(ctx: Context, checkpoint: CheckpointRow) -> Generator[bytes, None, None]:
    yield from ctx.blobs.read(checkpoint.blob.key)


def _conditions(told: object) -> StretchConditions | None:
    history = told.get("history") if isinstance(told, dict) else None
    if not isinstance(history, list) or not all(_is_entry(entry) for entry in history):
        return None
    return StretchConditions(history=tuple(history))


def _is_shared(entry: Mapping[str, Any]) -> bool:
    return SHARED_BATCH in entry["fingerprint"]


def _width(shared: Mapping[str, Any]) -> int:
    width = shared.get("width")
    return width if isinstance(width, int) else 1


def _never_shares(training: Mapping[str, Any]) -> bool:
    try:
        return joint_key(TrainSpec.model_validate(training)) is None
    except ValidationError:  # of a version that knew other fields
        return False


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("from_step"), int)
        and isinstance(entry.get("fingerprint"), dict)
    )
