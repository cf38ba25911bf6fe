"""Build the lease that a node begins with: spec, pictures, checkpoints, numbers. Part of the claim's transaction."""

from collections.abc import Iterator

from pydantic import SecretStr

from giornata.control.access.authenticate import attempt_token
from giornata.control.access.install import signing_key_in
from giornata.control.access.keep_secrets import secret_value
from giornata.control.budgets.history import fleet_mtbi_s
from giornata.control.context import Context
from giornata.control.models.downloads import downloads_of
from giornata.control.ports.node_queries.work_rows import AttemptRow, BlobRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import MODEL_ROLE
from giornata.control.storage.signed_urls import download
from giornata.domain.jobs.attempt import renew_every_s
from giornata.protocol.node.pictures import LeaseFile
from giornata.protocol.node.work import Lease, LeaseCheckpoint, LeaseInput
from giornata.protocol.specs import AUDIT_KIND, OF_TRAINING, input_files
from giornata.protocol.uploads import Download

# Which field of the spec names a dataset, and the part that its pictures play.
HUB_FIELD, WANDB_FIELD = "hub_token_secret", "wandb_api_key_secret"
ROLES = {"dataset": "instance", "class_dataset": "class"}


def build_lease(tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> Lease:
    """Return the lease of a live attempt. A second call gives the same, with fresh URLs.

    Raises InvalidInput when the job names a secret that is gone or cannot be unsealed.
    """
    # At its very beginning a job has none, and that is what most claims ask for.
    fresh = attempt.number == 1 and job.committed_step == 0
    usable = () if fresh else tx.checkpoints.usable(job.id)
    return Lease(
        attempt_id=attempt.id,
        attempt=attempt.number,
        token=attempt_token(signing_key_in(tx, ctx), attempt.id),
        job_id=job.id,
        job_name=job.name,
        kind=job.kind,
        spec=dict(job.spec),
        lease_s=ctx.policy.lease_s,
        renew_every_s=renew_every_s(ctx.policy.lease_s),
        inputs=tuple(_inputs(tx, ctx, job)),
        files=tuple(_base(tx, ctx, job)),
        checkpoints=tuple(LeaseCheckpoint(step=row.step, download=_download(ctx, row.blob)) for row in usable),
        mtbi_s=fleet_mtbi_s(tx, ctx, at_ms=at_ms),
        max_at_risk_s=ctx.policy.max_at_risk_s,
        hub_token=_secret(tx, ctx, job, HUB_FIELD),
        # What an audit repeats is reported nowhere.
        wandb_api_key=None if job.kind == AUDIT_KIND else _secret(tx, ctx, job, WANDB_FIELD),
        joint_key=job.joint_key,
    )


def _secret(tx: Transaction, ctx: Context, job: JobRow, field: str) -> SecretStr | None:
    """Return the secret that the spec names. This is the only way by which a secret ever leaves the store."""
    spec = job.spec.get("training", {}) if job.kind in OF_TRAINING else job.spec
    name = spec.get(field) if job.kind in {"train", *OF_TRAINING} else None
    if not isinstance(name, str):
        return None
    return SecretStr(secret_value(tx, ctx, job.project_id, name, where=f"spec.{field}"))


def _inputs(tx: Transaction, ctx: Context, job: JobRow) -> Iterator[LeaseInput]:
    spec = job.spec["training"] if job.kind == AUDIT_KIND else job.spec
    for field, role in ROLES.items():
        dataset_id = spec.get(field)
        if not isinstance(dataset_id, str):
            continue
        for item in tx.inputs.of_dataset(job.project_id, dataset_id):
            yield LeaseInput(
                role=role,
                name=item.name,
                caption=item.caption,
                repeats=item.repeats,
                resolution=item.resolution,
                download=_download(ctx, item.blob),
            )
    if input_files(job.kind, job.spec):
        for role, blob in sorted(tx.inputs.of_job(job.project_id, job.id).items()):
            if not role.startswith(MODEL_ROLE):
                yield LeaseInput(role=role, name=role, caption=None, download=_download(ctx, blob))


def _base(tx: Transaction, ctx: Context, job: JobRow) -> Iterator[LeaseFile]:
    """Yield the base of a training job, or of a job beside one, if the server has the file of that sha256."""
    spec = job.spec["training"] if job.kind in OF_TRAINING else job.spec
    sha256 = spec.get("pretrained_model_sha256") if job.kind in {"train", *OF_TRAINING} else None
    if sha256 is not None:
        holders = {job.id, job.spec.get("job", job.id)}  # a validation or an audit names the training job
        found = downloads_of(tx, ctx, job.project_id, [sha256], order_ids=sorted(holders))
        name = spec["pretrained_model_name_or_path"]
        yield from (LeaseFile(role="base", name=name, download=each) for each in found.values())


def _download(ctx: Context, blob: BlobRow) -> Download:
    return download(ctx, sha256=blob.sha256, size_bytes=blob.size_bytes, key=blob.key)
