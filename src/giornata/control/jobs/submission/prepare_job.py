"""Turn a request into a job that could be queued: every check, and every default that is drawn or derived."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from giornata.control.access.keep_secrets import secret_value
from giornata.control.access.permissions import require_root_admin
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.submission.length_faults import length_check, prompts_of, within
from giornata.control.jobs.submission.quota_faults import quota_faults, request_for
from giornata.control.jobs.submission.spec_faults import ParsedSpec, in_steps, parse_spec
from giornata.control.models.resolve import ModelPlace, not_looked_up, resolve_base, resolve_models
from giornata.control.pictures.annotator_nodes import annotator_faults
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import ItemRecord, JobRecord
from giornata.control.quotas.use import standing_of
from giornata.control.storage.item_faults import few_faults, resolution_faults
from giornata.control.text_limits import is_id, label_faults, text_faults
from giornata.domain.billing.quotas import UNLIMITED, QuotaStanding, refusal_of
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.model_kinds import INPAINTING_REPOSITORIES
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import JobState
from giornata.protocol.generation.checks.named_models import named_models, with_objects
from giornata.protocol.generation.checks.unmasked_bases import unmasked_bases
from giornata.protocol.generation.specs import OrderFields
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.model import Message
from giornata.protocol.node.joint import joint_key_of
from giornata.protocol.project.secrets import NAME_PATTERN
from giornata.protocol.specs import (
    PRETRAIN_KIND,
    TrainSpec,
    canonical_names,
    input_files,
    model_key,
    shape_key_of,
    spec_type,
    total_steps,
)
from giornata.protocol.training.file_names import output_name_of
from giornata.protocol.training.model_names import may_be_registered

SHOWN = 5
MOST_COUNTED_CHARS = 500_000
"""Characters of a dataset's captions whose tokens are counted in a request, which takes a tenth of a second. The node
counts the rest."""
SECRET_FIELDS = ("hub_token_secret", "wandb_api_key_secret")
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def prepare_job(
    ctx: Context,
    tx: Transaction,
    caller: Caller,
    request: SubmitJob,
    *,
    parsed_spec: ParsedSpec | None = None,
    notes_use: bool = True,
    standing: QuotaStanding | None = None,
    is_complete: bool = True,
) -> JobRecord:
    """Return the row of the new job. Raises InvalidInput with everything that is wrong with the request, and
    Forbidden for a kind that is the operator's alone.

    The stored spec is whole: the seed is drawn, and the adapter's alpha and the files' name are written down when
    they were not given, and epochs are turned into steps. An order's models have their sha256. `parsed_spec` is what
    `parse_spec` returned for this request, if it was asked already. `notes_use` is False when nothing is submitted:
    the registry does not count it as a use of these models, and the datasets are not held. `standing` is how the
    project stands to its quotas, where that has been read already. `is_complete` is False for an order of which some
    fields could not be read: it is refused anyway. Raises OverQuota where limits of the project are all that is in
    the way.
    """
    if request.kind == PRETRAIN_KIND:
        require_root_admin(caller)  # it reads and writes wherever the operator's cluster can
    parsed, found = parsed_spec or parse_spec(request.kind, request.spec, as_written=True)
    is_sound, faults = is_complete and not found, list(found)
    faults += _size_faults(ctx, request)
    faults += [*text_faults("name", request.name), *label_faults(request.labels)]
    faults += _dataset_faults(ctx, tx, caller, request, parsed, holds=notes_use)
    faults += _file_faults(tx, caller, request)
    faults += _secret_faults(ctx, tx, caller, request)
    order = None
    if request.kind in ORDER_KINDS:
        order = _named_models_spec(request, parsed)
        faults += _model_faults(ctx, tx, caller, order, is_sound=is_sound, notes_use=notes_use and not faults)
        faults += annotator_faults(tx, ctx, caller.project_id, request.kind, order) if is_sound else []
    if isinstance(parsed, TrainSpec) and may_be_registered(parsed.pretrained_model_name_or_path):
        base, wrong = resolve_base(tx, ctx, caller.project_id, parsed, notes_use=notes_use and not faults)
        parsed, faults = parsed.model_copy(update=dict(base)), [*faults, *wrong]
    standing = standing or standing_of(tx, ctx, caller.project_id)
    if standing is not UNLIMITED:
        faulty = {fault.where for fault in faults}
        faults += _quota_faults(tx, caller, request, parsed=parsed, order=order, standing=standing, faulty=faulty)
    if faults or parsed is None:
        raise refusal_of(faults)
    if isinstance(parsed, TrainSpec) and parsed.num_train_epochs is not None:
        items = _items(tx, caller, request.spec, "dataset") or ()
        parsed = in_steps(parsed, pictures=sum(item.repeats for item in items))
    spec = parsed.model_dump(mode="json") if order is None else order
    job_id = ctx.names.new("job")
    if isinstance(parsed, TrainSpec):
        spec["output_name"] = parsed.output_name or output_name_of(request.name or "") or job_id
        spec["seed"] = ctx.names.seed() if parsed.seed is None else parsed.seed
        spec["alpha"] = float(parsed.rank) if parsed.alpha is None else parsed.alpha
    elif isinstance(parsed, OrderFields) and parsed.seed is None:
        spec["seed"] = ctx.names.seed()
    now_ms = ctx.clock.now_ms()
    return JobRecord(
        id=job_id,
        project_id=caller.project_id,
        kind=request.kind,
        name=request.name or job_id,
        state=JobState.QUEUED,
        spec=spec,
        model_key=model_key(request.kind, spec),
        joint_key=joint_key_of(request.kind, spec),
        shape_key=shape_key_of(request.kind, spec),
        priority=request.priority,
        labels=request.labels,
        total_steps=total_steps(request.kind, spec),
        created_at_ms=now_ms,
        deadline_at_ms=None if request.deadline_s is None else now_ms + request.deadline_s * 1000,
        budget_micro_usd=request.budget_micro_usd,
        min_vram_bytes=request.min_vram_bytes or 0,
        created_by=caller.maker,
    )


def _quota_faults(
    tx: Transaction,
    caller: Caller,
    request: SubmitJob,
    *,
    parsed: Message | None,
    order: dict[str, Any] | None,
    standing: QuotaStanding,
    faulty: Collection[str],
) -> Iterable[Fault]:
    spec = order if parsed is None or order is not None else parsed.model_dump(mode="json")
    # Of a spec with faults it is not known how many pictures it means.
    is_sound = parsed is not None and not any(where.startswith("spec") for where in faulty)
    steps = total_steps(request.kind, spec) if is_sound and request.kind in ORDER_KINDS and spec is not None else None
    return quota_faults(
        tx,
        caller.project_id,
        kind=request.kind,
        priority=request.priority,
        spec=spec,
        asked=request_for(request.kind, steps),
        standing=standing,
        faulty=faulty,
    )


def _size_faults(ctx: Context, request: SubmitJob) -> Iterable[Fault]:
    """Yield a fault of a spec that is too large: a spec is kept as long as its job, and has no room for data."""
    is_order = request.kind in ORDER_KINDS
    most = ctx.policy.max_order_bytes if is_order else ctx.policy.max_spec_bytes
    size_bytes = len(json.dumps(request.spec, separators=(",", ":"), ensure_ascii=False).encode())
    if size_bytes > most:
        message = f"has {size_bytes} bytes as JSON; at most {most} are taken"
        hint = "upload large data as files (POST /v1/uploads), make a dataset of them, and name its id in the spec"
        hint = "divide it into several orders" if is_order else hint
        yield Fault(where="spec", message=message, hint=hint)


def _dataset_faults(
    ctx: Context, tx: Transaction, caller: Caller, request: SubmitJob, parsed: Message | None, *, holds: bool
) -> Iterable[Fault]:
    """Find faults of the datasets in the raw spec, so that a fault of another field does not hide these.

    `holds` locks the datasets until the transaction ends.
    """
    if request.kind != "train":
        return
    items = _items(tx, caller, request.spec, "dataset", holds=holds)
    if items is not None:
        yield from few_faults(ctx.policy, len({item.sha256 for item in items}), where="spec.dataset")
        yield from _caption_faults(request.spec, items)
    elif _is_text(request.spec, "dataset"):
        yield _no_dataset(request.spec, "dataset")
    classes = _items(tx, caller, request.spec, "class_dataset", holds=holds)
    if classes is None and _is_text(request.spec, "class_dataset"):
        yield _no_dataset(request.spec, "class_dataset")
    if isinstance(parsed, TrainSpec):
        given = (item.resolution for item in (*(items or ()), *(classes or ())))
        yield from resolution_faults(given, enable_bucket=parsed.enable_bucket)
    check = length_check(request.spec, parsed if isinstance(parsed, TrainSpec) else None)
    if check.spec is not None:
        yield from check.of_texts(prompts_of(request.spec))
        yield from check.of_captions(within(_captions(items), most_chars=MOST_COUNTED_CHARS))
        yield from check.of_texts(within(_captions(classes), most_chars=MOST_COUNTED_CHARS))


def _file_faults(tx: Transaction, caller: Caller, request: SubmitJob) -> Iterable[Fault]:
    """Find faults of the files in the raw spec. A value that cannot be a hash has a fault already."""
    named, _ = canonical_names(TrainSpec, request.spec)
    files = {role: sha for role, sha in input_files(request.kind, named).items() if SHA256.fullmatch(sha)}
    there = tx.uploads.blobs(caller.project_id, sorted(files.values())) if files else {}
    yield from (missing_file(role, sha256) for role, sha256 in files.items() if sha256 not in there)


def missing_file(role: str, sha256: str) -> Fault:
    """Return the fault of a file that the project does not have."""
    message, hint = f"there are no bytes with sha256 {sha256}", "upload the file, and complete the upload"
    return Fault(where=f"spec.{role}", message=message, hint=hint)


def _named_models_spec(request: SubmitJob, parsed: Message | None) -> dict[str, Any]:
    """Return an order's spec as JSON with an object for each model; of a spec with faults, what can be read."""
    if parsed is not None:
        return parsed.model_dump(mode="json")
    expected = spec_type(request.kind)
    named, _ = canonical_names(expected, request.spec) if expected is not None else (request.spec, ())
    return with_objects(named)


def _model_faults(
    ctx: Context, tx: Transaction, caller: Caller, spec: Mapping[str, Any], *, is_sound: bool, notes_use: bool
) -> list[Fault]:
    """Resolve the models of an order, and return their faults. Of a spec with faults of its own only what the
    registry has is looked up: nothing was brought for it, and a fault says so."""
    places = list(named_models(spec))
    unknown = [] if is_sound else not_looked_up(tx, caller.project_id, places)
    passed_over = {each.where for each in unknown}
    places = [each for each in places if each.where not in passed_over]
    faults = resolve_models(tx, ctx, caller.project_id, places, notes_use=notes_use) if places else []
    return [*faults, *_unmasked_faults(spec), *_of_unknown(unknown)]


def _of_unknown(places: Sequence[ModelPlace]) -> Iterable[Fault]:
    """Yield a note of the models that were not looked up, which may have faults as well."""
    if places:
        shown = ", ".join(each.where.removeprefix("spec.") for each in places[:SHOWN])
        shown += f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        message = f"names models by reference or sha256 that were not looked up: {shown}"
        yield Fault(where="spec", message=message, hint="mend the other faults first")


def _unmasked_faults(spec: Mapping[str, Any]) -> Iterable[Fault]:
    """Yield a fault where a mask is missing for a base that is known to need one, by its resolved name."""
    for base, where in unmasked_bases(spec):
        if base.use.get("sha256") is None and base.use["name"] in INPAINTING_REPOSITORIES:
            message = f"{base.use['name']} was made to inpaint, and the picture has no mask"
            hint = "give image and mask, or another base model: those of 4 channels draw with a mask and without"
            yield Fault(where=where, message=message, hint=hint)


def _secret_faults(ctx: Context, tx: Transaction, caller: Caller, request: SubmitJob) -> Iterable[Fault]:
    for field in SECRET_FIELDS if request.kind == "train" else ():
        name = request.spec.get(field)
        if not isinstance(name, str) or re.fullmatch(NAME_PATTERN, name) is None:
            continue
        try:
            secret_value(tx, ctx, caller.project_id, name, where=f"spec.{field}")
        except InvalidInput as refusal:
            yield from refusal.faults


def _items(
    tx: Transaction, caller: Caller, spec: Mapping[str, Any], field: str, *, holds: bool = False
) -> list[ItemRecord] | None:
    if not _is_text(spec, field):
        return None
    find = tx.datasets.hold if holds else tx.datasets.get
    if find(spec[field], project_id=caller.project_id) is None:
        return None
    return tx.datasets.items(spec[field], project_id=caller.project_id)


def _captions(items: Sequence[ItemRecord] | None) -> list[tuple[str, str]]:
    return [(item.name, item.caption) for item in items or () if item.caption is not None]


def _is_text(spec: Mapping[str, Any], field: str) -> bool:
    # What cannot be an id of ours has a fault already, and is no business of the database.
    value = spec.get(field)
    return isinstance(value, str) and is_id(value)


def _no_dataset(spec: Mapping[str, Any], field: str) -> Fault:
    return Fault(
        where=f"spec.{field}",
        message=f"this project has no dataset {spec[field]}",
        hint="create it first, or check the id",
    )


def _caption_faults(spec: Mapping[str, Any], items: Sequence[ItemRecord]) -> Iterable[Fault]:
    prompt = spec.get("instance_prompt")
    bare = [item.name for item in items if item.caption is None]
    if prompt is None and bare:
        names = ", ".join(bare[:SHOWN]) + (f" and {len(bare) - SHOWN} more" if len(bare) > SHOWN else "")
        message = f"is required: there is no caption for {names}"
        yield Fault(where="spec.instance_prompt", message=message, hint="such as: a photo of sks dog")
    if isinstance(prompt, str) and prompt and not prompt.strip():
        yield Fault(where="spec.instance_prompt", message="is blank", hint="such as: a photo of sks dog")
