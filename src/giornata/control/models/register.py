"""Add, list, pin and remove models of the registry. The LoRA of a training job is a model, too."""

from collections.abc import Sequence
from dataclasses import replace

from giornata.control.access.permissions import require_root_admin, require_scope, require_user
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.models.allowed_models import model_is_allowed
from giornata.control.models.fetch_model import fetch_model
from giornata.control.models.stored_header import StoredModel, stored_facts
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.ports.model_registry import ModelRecord
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import ArtifactRecord, CheckpointRecord, JobRecord
from giornata.control.quotas.use import quotas_of
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Fault, InvalidInput, NotFound
from giornata.domain.generation.model_header import name_faults
from giornata.domain.generation.model_kinds import KNOWN_REPOSITORIES, ModelFamily, ModelKind
from giornata.protocol.model_references import (
    HubRepository,
    JobStep,
    ModelReference,
    ModelSource,
    model_reference,
    source_of,
)
from giornata.protocol.models import AddModel, ChangeModel, ModelPage, RegisteredModel
from giornata.protocol.project.admin import Scope
from giornata.protocol.training.file_names import LORA_FILES, lora_file

TRAIN_KIND = "train"
KEPT_CHECKPOINTS = "a job keeps its latest checkpoints; checkpoints_keep_every keeps more of them"
WHERE = "reference"


def add_model(ctx: Context, caller: Caller, request: AddModel) -> RegisteredModel:
    """Give a model file a name in the project. The same request again changes nothing.

    Raises Forbidden, InvalidInput with every fault, and Unavailable when the bytes cannot be fetched just now.
    """
    require_scope(caller, Scope.DATASETS)
    if request.shared:
        require_root_admin(caller)
    with ctx.store.read() as tx:
        stands = tx.models.named(caller.project_id, [request.name]).get(request.name)
    if stands is not None and stands.project_id == caller.project_id:
        return _same(stands, request)
    record = _uploaded(ctx, caller, request) if request.reference is None else _referred(ctx, caller, request)
    record = replace(record, created_by=caller.maker)
    with ctx.store.begin() as tx:
        if tx.models.add(record):
            changes = {"kind": record.kind, "sha256": record.sha256, "shared": record.shared, "pinned": record.pinned}
            record_call(tx, caller, AuditVerb.MODEL_ADD, record.name, at_ms=record.created_at_ms, changes=changes)
        stands = tx.models.named(caller.project_id, [request.name]).get(request.name) or record
    return _same(stands, request)


def list_models(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> ModelPage:
    """Return the project's models and the shared ones, newest first. Raises Forbidden, InvalidInput."""
    require_user(caller)
    check_limit(limit)
    with ctx.store.read() as tx:
        rows = tx.models.page(caller.project_id, before=decode_cursor(cursor), limit=limit + 1)
        quotas = quotas_of(tx, caller.project_id)
    page, following = cut(rows, limit, lambda model: (model.created_at_ms, model.name))
    items = (model_reply(model).model_copy(update={"allowed": model_is_allowed(model, quotas)}) for model in page)
    return ModelPage(items=tuple(items), next=following)


def change_model(ctx: Context, caller: Caller, name: str, request: ChangeModel) -> RegisteredModel:
    """Pin or unpin one of the project's own models. Raises Forbidden, NotFound."""
    require_scope(caller, Scope.DATASETS)
    check_name(name)
    with ctx.store.begin() as tx:
        changed = _found(tx.models.set_pinned(caller.project_id, name, pinned=request.pinned), name)
        record_call(
            tx, caller, AuditVerb.MODEL_CHANGE, name, at_ms=ctx.clock.now_ms(), changes={"pinned": request.pinned}
        )
    return model_reply(changed)


def remove_model(ctx: Context, caller: Caller, name: str) -> RegisteredModel:
    """Forget one of the project's own models. Its bytes stay for a day, for the orders that are about to end.

    Raises Forbidden, NotFound.
    """
    require_scope(caller, Scope.DATASETS)
    check_name(name)
    with ctx.store.begin() as tx:
        dropped = _found(tx.models.drop(caller.project_id, name), name)
        now_ms = ctx.clock.now_ms()
        record_call(tx, caller, AuditVerb.MODEL_REMOVE, name, at_ms=now_ms, changes={"sha256": dropped.sha256})
        if dropped.sha256 is not None:
            tx.uploads.touch_blobs(caller.project_id, [dropped.sha256], at_ms=now_ms)
    return model_reply(dropped)


def referred_model(
    ctx: Context,
    project_id: str,
    reference: ModelReference,
    text: str,
    *,
    where: str,
    request: AddModel | None = None,
) -> ModelRecord:
    """Return the model that a reference stands for, with its bytes in the project. Its name is the reference.

    `request` holds what a user says of it. Raises InvalidInput, Unavailable.
    """
    said = request or AddModel(name="model", reference=text)
    if isinstance(reference, HubRepository):
        return _of_repository(ctx, project_id, text, said)
    if isinstance(reference, JobStep):
        found = trained_lora(ctx, project_id, reference, where=where)
    else:
        found = fetch_model(
            ctx,
            project_id,
            reference,
            where=where,
            token_secret=said.token_secret,
            sha256=said.sha256,
            kind=said.kind,
            family=said.family,
        )
    return _record(ctx, project_id, found, name=text, source=source_of(reference))


def uploaded_model(
    ctx: Context,
    project_id: str,
    sha256: str,
    *,
    where: str,
    kind: ModelKind | None = None,
    family: ModelFamily | None = None,
) -> ModelRecord:
    """Return the model of an uploaded file; its name is the sha256. Raises InvalidInput."""
    with ctx.store.begin() as tx:
        tx.uploads.touch_blobs(project_id, [sha256], at_ms=ctx.clock.now_ms())
        blob = tx.uploads.blobs(project_id, [sha256]).get(sha256)
    if blob is None:
        message, hint = f"there are no bytes with sha256 {sha256}", "upload the file, and complete the upload"
        raise InvalidInput([Fault(where=where, message=message, hint=hint)])
    facts = stored_facts(ctx, blob.key, blob.size_bytes, where=where, kind=kind, family=family)
    found = StoredModel(sha256=sha256, size_bytes=blob.size_bytes, facts=facts)
    return _record(ctx, project_id, found, name=sha256, source=ModelSource.BLOB)


def model_reply(model: ModelRecord) -> RegisteredModel:
    """Return a model as its project sees it."""
    return RegisteredModel(
        name=model.name,
        sha256=model.sha256,
        kind=ModelKind(model.kind),
        family=None if model.family is None else ModelFamily(model.family),
        size_bytes=model.size_bytes,
        source=ModelSource(model.source),
        reference="" if model.source == ModelSource.BLOB else model.reference,
        pinned=model.pinned,
        shared=model.shared,
        created_at=instant(model.created_at_ms),
        used_at=instant(model.used_at_ms),
        created_by=None if model.shared else model.created_by,
    )


def _uploaded(ctx: Context, caller: Caller, request: AddModel) -> ModelRecord:
    sha256 = request.sha256 or ""
    found = uploaded_model(ctx, caller.project_id, sha256, where="sha256", kind=request.kind, family=request.family)
    return _named(found, request)


def _referred(ctx: Context, caller: Caller, request: AddModel) -> ModelRecord:
    text = request.reference or ""
    try:
        reference = model_reference(text)
    except ValueError as error:
        raise InvalidInput([Fault(where=WHERE, message=f"{text} {error}")]) from None
    faults = name_faults(text, where=WHERE)
    if reference is None and not faults:
        hint = "give a URL, owner/name:file.safetensors on the hub, Civitai's URN, or a file of your own"
        faults.append(Fault(where=WHERE, message=f"{text} names no file of a source", hint=hint))
    if isinstance(reference, HubRepository) and request.sha256 is not None:
        faults.append(
            Fault(where="sha256", message="a repository of several files has no sha256", hint="leave it out")
        )
    if faults or reference is None:
        raise InvalidInput(faults)
    return _named(referred_model(ctx, caller.project_id, reference, text, where=WHERE, request=request), request)


def _named(found: ModelRecord, request: AddModel) -> ModelRecord:
    """Return the model under the name that its user gives it."""
    return replace(found, name=request.name, pinned=request.pinned, shared=request.shared)


def _same(stands: ModelRecord, request: AddModel) -> RegisteredModel:
    """Return the model that has the name. Raises InvalidInput when the name stands for another file."""
    other = request.reference is not None and request.reference != stands.reference
    if other or request.sha256 not in {None, stands.sha256}:
        message = f"{request.name} is another model: {stands.reference}"
        hint = "choose another name, or remove that model first"
        raise InvalidInput([Fault(where="name", message=message, hint=hint)])
    return model_reply(stands)


def _of_repository(ctx: Context, project_id: str, repository: str, said: AddModel) -> ModelRecord:
    now_ms = ctx.clock.now_ms()
    return ModelRecord(
        project_id=project_id,
        name=repository,
        sha256=None,
        kind=said.kind or ModelKind.BASE,
        family=said.family or KNOWN_REPOSITORIES.get(repository),
        size_bytes=0,
        source=ModelSource.HUB,
        reference=repository,
        pinned=False,
        shared=False,
        created_at_ms=now_ms,
        used_at_ms=now_ms,
    )


def _record(ctx: Context, project_id: str, found: StoredModel, *, name: str, source: ModelSource) -> ModelRecord:
    now_ms = ctx.clock.now_ms()
    return ModelRecord(
        project_id=project_id,
        name=name,
        sha256=found.sha256,
        kind=found.facts.kind,
        family=found.facts.family,
        size_bytes=found.size_bytes,
        source=source,
        reference=name,
        pinned=False,
        shared=False,
        created_at_ms=now_ms,
        used_at_ms=now_ms,
    )


def check_name(name: str) -> None:
    """Raises NotFound for text that no model has as its name: it is no business of the database."""
    if not name.isprintable():
        raise NotFound("this project has no such model of its own")


def _found(model: ModelRecord | None, name: str) -> ModelRecord:
    if model is None:
        raise NotFound(f"this project has no model {name} of its own")
    return model


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
    raise InvalidInput([Fault(where=where, message=message, hint=KEPT_CHECKPOINTS)])


def _steps(rows: Sequence[CheckpointRecord]) -> list[int]:
    """Return the steps with a checkpoint, highest first."""
    return [row.step for row in rows]
