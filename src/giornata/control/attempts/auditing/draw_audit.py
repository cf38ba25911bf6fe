"""Draw the stretches of training that are run again elsewhere, in the transaction that commits their checkpoint.

A commit whose stretch is not drawn costs no statement.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from giornata.control.access.install import signing_key_in
from giornata.control.context import Context
from giornata.control.pictures.order_files import BASE_SHA256
from giornata.control.ports.node_queries.audit_store import AuditRun, ReplayAuditRow
from giornata.control.ports.node_queries.work_rows import AttemptRow, CheckpointRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.domain.jobs.audits import AuditStanding, AuditState, is_audited, share_of
from giornata.domain.jobs.job import JobState
from giornata.domain.machines.health import MachineState
from giornata.protocol.node.work import CommitCheckpoint
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.protocol.specs import AUDIT_KIND, CHECKPOINT_ROLE, INIT_ROLE, model_key

PRIORITY = -102
"""Behind every job that a user can submit, and behind validations."""
NOBODY = "~nobody"
"""The machine that an audit waits for before one is drawn. No node can say a `~`."""
SEED_BYTES = 8


def audit_seed(tx: Transaction, ctx: Context) -> int:
    """Return the seed of all draws of audits, which no node can work out."""
    digest = hmac.new(signing_key_in(tx, ctx), b"replay audits", hashlib.sha256).digest()
    return int.from_bytes(digest[:SEED_BYTES], "big")


def draw_audit(
    tx: Transaction,
    ctx: Context,
    job: JobRow,
    attempt: AttemptRow,
    commit: CommitCheckpoint,
    *,
    earlier: Sequence[CheckpointRow],
    at_ms: int,
) -> None:
    """Order an audit of the stretch that this commit ends, if it is drawn. `earlier` are the job's checkpoints of
    before. The job is held.
    """
    policy = ctx.policy.audits
    if job.kind != "train" or not policy.largest_share:
        return
    seed = audit_seed(tx, ctx)
    if not is_audited(seed, job.id, commit.step, share=policy.largest_share):
        return
    audit = _audit(tx, ctx, job, attempt, commit, at_ms=at_ms)
    begin = _beginning(attempt, commit, earlier)
    if audit is None or begin is None or not is_audited(seed, job.id, commit.step, share=_share(tx, ctx, audit)):
        return
    from_step, checkpoint = begin
    audit, new = ordered(ctx, replace(audit, from_step=from_step), job, checkpoint)
    add_run(tx, new)
    tx.audits.add(audit)


def _audit(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, commit: CommitCheckpoint, *, at_ms: int
) -> ReplayAuditRow | None:
    node = tx.audits.conditions(attempt.node_id)
    if node is None:
        return None
    return ReplayAuditRow(
        id=ctx.names.new("aud"),
        project_id=job.project_id,
        job_id=job.id,
        attempt_id=attempt.id,
        attempt_number=attempt.number,
        machine_id=attempt.machine_id,
        fleet=node.fleet,
        device=node.device,
        versions=dict(node.versions),
        from_step=0,
        to_step=commit.step,
        claimed_sha256=commit.sha256,
        sha256=commit.sha256,
        state=AuditState.OPEN,
        message="",
        runs=(),
        guilty_machine_id=None,
        created_at_ms=at_ms,
        decided_at_ms=None,
    )


def _share(tx: Transaction, ctx: Context, audit: ReplayAuditRow) -> float:
    """Return the share of this machine's stretches that are audited."""
    health = tx.machines.get_each([audit.machine_id], ["train"]).get((audit.machine_id, "train"))
    sound, _ = tx.audits.sound(audit.machine_id)
    doubted = health is not None and health.state is not MachineState.OK
    standing = AuditStanding(
        machine_id=audit.machine_id,
        fleet=audit.fleet,
        sound_audits=sound,
        suspect=doubted or tx.audits.was_refuted(audit.machine_id),
    )
    return share_of(standing, policy=ctx.policy.audits)


def _beginning(
    attempt: AttemptRow, commit: CommitCheckpoint, earlier: Sequence[CheckpointRow]
) -> tuple[int, CheckpointRow | None] | None:
    """Return the step and the checkpoint with which the stretch begins; None when the attempt's beginning is gone.

    The attempt began there, or committed it.
    """
    usable = [row for row in earlier if not row.rejected and attempt.start_step <= row.step < commit.step]
    if usable:
        first = max(usable, key=lambda row: row.step)
        return first.step, first
    return (0, None) if attempt.start_step == 0 else None


def ordered(
    ctx: Context, audit: ReplayAuditRow, job: JobRow, checkpoint: CheckpointRow | None
) -> tuple[ReplayAuditRow, JobRecord]:
    """Return the audit with one more run, and the job that carries the run out. No node can take the job yet."""
    spec = {
        "audit": audit.id,
        "job": job.id,
        "from_step": audit.from_step,
        "to_step": audit.to_step,
        "checkpoint": None if checkpoint is None else checkpoint.blob.sha256,
        "training": dict(job.spec),
    }
    new = run_record(ctx, audit, spec, min_vram_bytes=job.min_vram_bytes, at_ms=audit.created_at_ms)
    return replace(audit, runs=(*audit.runs, AuditRun(job_id=new.id))), new


def run_record(
    ctx: Context, audit: ReplayAuditRow, spec: dict[str, Any], *, min_vram_bytes: int, at_ms: int
) -> JobRecord:
    """Return the job that repeats the stretch. The operator's project pays for it."""
    return JobRecord(
        id=ctx.names.new("audit"),
        project_id=audit.project_id,
        kind=AUDIT_KIND,
        name=f"{audit.job_id}@{audit.to_step}",
        state=JobState.QUEUED,
        spec=dict(spec),
        model_key=model_key(AUDIT_KIND, spec),
        priority=PRIORITY,
        total_steps=audit.to_step,
        created_at_ms=at_ms,
        deadline_at_ms=audit.created_at_ms + round(ctx.policy.audits.waits_s * 1000),
        min_vram_bytes=min_vram_bytes,
        only_machine_id=NOBODY,
        billed_to=ROOT_PROJECT,
    )


def add_run(tx: Transaction, new: JobRecord, *, earlier: Sequence[AuditRun] = ()) -> None:
    """Insert the job with the files that it reads. `earlier` are the runs of the same audit, which may still hold the
    base of a training job that has ended."""
    tx.submission.add_each([new])
    training = new.spec["training"]
    for role, sha256 in ((CHECKPOINT_ROLE, new.spec["checkpoint"]), (INIT_ROLE, training.get(INIT_ROLE))):
        if isinstance(sha256, str):
            tx.submission.add_input(new, role, sha256)
    if training.get(BASE_SHA256) is not None:
        tx.submission.hold_models_of(new.id, [new.spec["job"], *(run.job_id for run in earlier)])
