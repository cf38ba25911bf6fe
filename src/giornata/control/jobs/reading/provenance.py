"""The signed record of a job: spec, data, base, checkpoints with their machines, audits, and files."""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from giornata.control.access.install import signing_key_in
from giornata.control.access.machine_names import MachineNames, machine_names
from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import own_job
from giornata.control.ports.node_queries.audit_store import CheckpointCommit, ReplayAuditRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.control.timestamps import instant
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.jobs.job import IMPORTED_FROM
from giornata.protocol.project.admin import Scope
from giornata.protocol.provenance import (
    MOST_CHECKPOINTS,
    Provenance,
    ProvenanceAudit,
    ProvenanceCheckpoint,
    ProvenanceFile,
    ProvenanceKey,
    SignedProvenance,
    canonical_bytes,
)

DATASET_FIELDS = ("dataset", "class_dataset")


def read_provenance(ctx: Context, caller: Caller, job_id: str) -> SignedProvenance:
    """Return the signed record of a training job.

    Raises Forbidden, NotFound, and InvalidInput for other kinds and for a job that was imported.
    """
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        job = _trained_here(tx, caller, job_id)
        key = _key(tx, ctx)
        record = _record(tx, job, machine_names(tx, ctx, caller), at_ms=ctx.clock.now_ms())
    signed = canonical_bytes(record.model_dump(mode="json"))
    return SignedProvenance(
        provenance=record, public_key=_public(key), signature=base64.b64encode(key.sign(signed)).decode()
    )


def read_audits(ctx: Context, caller: Caller, job_id: str, *, latest: int) -> tuple[ProvenanceAudit, ...]:
    """Return the replay audits of the latest steps, by step, as the signed record has them.

    Raises what `read_provenance` raises.
    """
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        _trained_here(tx, caller, job_id)
        names = machine_names(tx, ctx, caller)
        return tuple(_audit(each, names) for each in tx.audits.of_job(job_id, latest=latest))


def _trained_here(tx: Transaction, caller: Caller, job_id: str) -> JobRecord:
    job = own_job(tx, caller, job_id)
    if job.kind != "train":
        message = f"{job_id} is of kind {job.kind}, which leaves no checkpoints that could be audited"
        raise InvalidInput([Fault(where="job_id", message=message, hint="name a job of kind train")])
    if IMPORTED_FROM in job.labels:
        message = f"{job_id} was imported: this installation has not seen its training"
        raise InvalidInput([Fault(where="job_id", message=message, hint="ask the installation that trained it")])
    return job


def provenance_key(ctx: Context, caller: Caller) -> ProvenanceKey:
    """Return the key that verifies the records of all jobs. Raises Forbidden."""
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        return ProvenanceKey(public_key=_public(_key(tx, ctx)))


def _key(tx: Transaction, ctx: Context) -> Ed25519PrivateKey:
    """Return the private key, which follows from the installation's signing key and changes with it."""
    seed = hmac.new(signing_key_in(tx, ctx), b"provenance", hashlib.sha256).digest()
    return Ed25519PrivateKey.from_private_bytes(seed)


def _public(key: Ed25519PrivateKey) -> str:
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def _record(tx: Transaction, job: JobRecord, names: MachineNames, *, at_ms: int) -> Provenance:
    machines = {
        each.number: names.machine(each.machine_id)
        for each in tx.job_reads.attempts([job.id], project_id=job.project_id, messages=False)
    }
    commits = tx.audits.commits(job.id, limit=MOST_CHECKPOINTS)
    files = tx.job_reads.artifacts(job.id, project_id=job.project_id)
    return Provenance(
        job_id=job.id,
        retry_of=job.retry_of,
        state=job.state,
        suspect=job.suspect,
        spec_sha256=hashlib.sha256(canonical_bytes(job.spec)).hexdigest(),
        datasets={field: str(job.spec[field]) for field in DATASET_FIELDS if job.spec.get(field)},
        data_sha256=_hash(job, "data_sha256"),
        base_sha256=_hash(job, "base_sha256"),
        fingerprints=_fingerprints(job),
        checkpoints=tuple(_checkpoint(each, machines) for each in commits),
        audits=tuple(_audit(each, names) for each in tx.audits.of_job(job.id)),
        files=tuple(ProvenanceFile(name=row.name, sha256=row.sha256, size_bytes=row.size_bytes) for row in files),
        issued_at=instant(at_ms),
    )


def _hash(job: JobRecord, name: str) -> str | None:
    found = job.result.get(name)
    return found if isinstance(found, str) else None


def _fingerprints(job: JobRecord) -> tuple[dict[str, Any], ...]:
    found = job.result.get("fingerprints")
    return tuple(each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def _checkpoint(commit: CheckpointCommit, machines: Mapping[int, str]) -> ProvenanceCheckpoint:
    return ProvenanceCheckpoint(
        step=commit.step,
        sha256=commit.sha256,
        attempt=commit.attempt_number,
        machine=machines.get(commit.attempt_number or 0, ""),
        committed_at=instant(commit.at_ms),
    )


def _audit(audit: ReplayAuditRow, names: MachineNames) -> ProvenanceAudit:
    return ProvenanceAudit(
        from_step=audit.from_step,
        to_step=audit.to_step,
        sha256=audit.claimed_sha256,
        state=audit.state,
        machine=names.machine(audit.machine_id),
        repeated_by=_repeaters(audit, names),
        message=audit.message,
        decided_at=instant(audit.decided_at_ms),
    )


def _repeaters(audit: ReplayAuditRow, names: MachineNames) -> tuple[str, ...]:
    done: Sequence[str] = [run.machine_id for run in audit.runs if run.outcome in {"same", "differs"}]
    return tuple(names.machine(machine_id) for machine_id in done if machine_id)
