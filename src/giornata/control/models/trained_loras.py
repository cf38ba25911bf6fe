"""The LoRA that a training job has committed, as a model of its project: the finished one, or a checkpoint's."""

from collections.abc import Sequence

from giornata.control.context import Context
from giornata.control.models.stored_header import StoredModel, stored_facts
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import ArtifactRecord, CheckpointRecord, JobRecord
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.model_kinds import ModelKind
from giornata.protocol.model_references import JobStep
from giornata.protocol.training.file_names import LORA_FILES, lora_file

TRAIN_KIND = "train"
KEPT = "a job keeps its latest checkpoints; checkpoints_keep_every keeps more of them"


def trained_lora(ctx: Context, project_id: str, wanted: JobStep, *, where: str) -> StoredModel:
    """Return the file of a job's LoRA: kohya's if there is one, for it holds new tokens too.

    A checkpoint is itself a file that the engine reads as a LoRA. Raises InvalidInput when the project has no such
    job, when nothing is committed yet, and when the step has no checkpoint. The family of a file of a few layers may
    be unknown.
    """
    with ctx.store.read() as tx:
        job = tx.job_reads.get(wanted.job_id, project_id=project_id)
        if job is None or job.kind != TRAIN_KIND:
            message = f"this project has no training job {wanted.job_id}"
            raise InvalidInput([Fault(where=where, message=message, hint="giornata jobs lists the jobs")])
        found = _finished(tx, job, where) if wanted.step is None else _at_step(tx, job, wanted.step, where)
    facts = stored_facts(ctx, found.key, found.size_bytes, where=where, kind=ModelKind.LORA, family_needed=False)
    return StoredModel(sha256=found.sha256, size_bytes=found.size_bytes, facts=facts)


def _finished(tx: Transaction, job: JobRecord, where: str) -> ArtifactRecord:
    by_name = {each.name: each for each in tx.job_reads.artifacts(job.id, project_id=job.project_id)}
    output_name = job.spec.get("output_name")
    for kind in LORA_FILES:
        if (found := by_name.get(lora_file(kind, output_name))) is not None:
            return found
    steps = _steps(tx.job_reads.checkpoints(job.id, project_id=job.project_id))
    message = f"{job.id} is {job.state} and has committed no LoRA"
    hint = f"name a checkpoint: {job.id}@{steps[0]}" if steps else "wait for its end"
    raise InvalidInput([Fault(where=where, message=message, hint=hint)])


def _at_step(tx: Transaction, job: JobRecord, step: int, where: str) -> CheckpointRecord | ArtifactRecord:
    rows = tx.job_reads.checkpoints(job.id, project_id=job.project_id)
    for row in rows:
        if row.step == step:
            return row
    if step == job.total_steps and job.state == "succeeded":
        return _finished(tx, job, where)
    steps = ", ".join(map(str, reversed(_steps(rows)))) or "none yet"
    message = f"{job.id} has no checkpoint of step {step}; there are: {steps}"
    raise InvalidInput([Fault(where=where, message=message, hint=KEPT)])


def _steps(rows: Sequence[CheckpointRecord]) -> list[int]:
    """Return the steps with a checkpoint, highest first."""
    return [row.step for row in rows]
