"""New training: pictures as they will be trained, captions, settings, and what it would cost.

Everything that was typed stands in one form. Pictures are uploaded by the API's own routes; the form names them by
their sha256, so that a browser can send it again after a reload.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Response
from pydantic import ValidationError

from giornata.control.jobs.reading.job_outputs import read_checkpoints_at
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.submission.estimate import estimate
from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.control.jobs.submission.submit import submit
from giornata.control.models.register import list_models
from giornata.control.storage.datasets import create_dataset, get_dataset
from giornata.control.storage.training_view import TrainedView, read_picture, view_pictures
from giornata.dashboard.forms import micro_usd_in, number_in, said_of
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import SubmittedForm, Visit, action, page, see
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import Fault, GiornataError, InvalidInput, NotFound, collecting
from giornata.domain.generation.model_kinds import ModelKind
from giornata.protocol.jobs import Job, SubmitJob
from giornata.protocol.presets import PRESETS, started_from
from giornata.protocol.project.admin import Scope
from giornata.protocol.specs import TrainSpec
from giornata.protocol.uploads import CreateDataset, DatasetItem

MOST_PICTURES = 200
"""Pictures that the page takes; a larger dataset is made by `giornata train`."""
MOST_SHOWN_BYTES = 32 * 2**20
BASES = 50
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
OF_SPEC = re.compile(r"spec\.(\w+)", re.ASCII)
NO_DATASET = "ds_0"
FIELDS: Mapping[str, str] = {
    "model": "pretrained_model_name_or_path",
    "instance_prompt": "instance_prompt",
    "steps": "max_train_steps",
}
"""Fields of the form that are fields of the spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of the form, by the sha256 of its bytes."""

    sha256: str
    name: str
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedFaults:
    """Faults beside the fields and the pictures that they are of; the others stand above the form."""

    fields: Mapping[str, str]
    pictures: Mapping[str, str]
    others: Sequence[Fault]


def show(visit: Visit) -> Response:
    """Show the form: empty, or with the settings of a job, to be changed; `from` names a checkpoint to begin with."""
    _require_writer(visit)
    if (job_id := visit.query("like")) is None:
        return _page(visit, [])
    job = get_job(visit.ctx, visit.caller, job_id)
    if job.kind != "train":
        raise NotFound("there is no such page")
    changes = {} if (step := visit.query("from")) is None else _from_checkpoint(visit, job_id, step)
    pictures, typed = _like(visit, job, changes)
    return _page(visit, pictures, typed=typed, like=job)


def _from_checkpoint(visit: Visit, job_id: str, step: str) -> dict[str, Any]:
    """Return the fields by which a job begins with the weights of a checkpoint. Raises NotFound.

    The seed is another one: with the old one the new job would look at the same noise once more.
    """
    number = number_in(step)
    steps = [] if number is None else [number]
    found = read_checkpoints_at(visit.ctx, visit.caller, job_id, steps).items
    if not found:
        raise NotFound("there is no such checkpoint")
    return {"init_lora": found[0].sha256, "seed": None}


def _like(visit: Visit, job: Job, changes: Mapping[str, Any]) -> tuple[list[Picture], dict[str, str]]:
    """Return the pictures of a job and the texts of the form's fields.

    A dataset that the form cannot hold as it is stays a field of the spec, and is trained unchanged.
    """
    spec = {name: value for name, value in {**job.spec, **changes}.items() if value is not None}
    pictures = _pictures_of(visit, str(spec.get("dataset")))
    more = _chosen(spec)
    if pictures:
        more.pop("dataset", None)
    if more.get("output_name") == job.name:  # as a new job would be called that has a name
        more.pop("output_name")
    typed = {name: str(spec.get(own, "")) for name, own in FIELDS.items()}
    typed |= {"name": "" if job.name == job.id else job.name, "preset": ""}
    if job.budget_micro_usd is not None:
        typed["budget"] = f"{job.budget_micro_usd / MICRO_USD:.2f}"
    return pictures, typed | {"more": json.dumps(more, indent=1, ensure_ascii=False)}


def _chosen(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that make this spec from the defaults, but those of the form."""
    base = {name: spec[name] for name in (*FIELDS.values(), "dataset") if name in spec}

    def others_of(more: Mapping[str, Any]) -> dict[str, Any]:
        made = TrainSpec.model_validate({**base, **more}).model_dump(mode="json")
        return {name: value for name, value in spec.items() if name not in base and made.get(name) != value}

    try:
        different = others_of({})
        # A default may follow from another field, as alpha does from rank.
        more = different | others_of(different)
    except ValidationError:  # made by another version
        more = {name: value for name, value in spec.items() if name not in base}
    return more | ({"dataset": spec["dataset"]} if "dataset" in spec else {})


def _pictures_of(visit: Visit, dataset_id: str) -> list[Picture]:
    """Return the pictures of a dataset; none when the form would lose some of them, or how they are used."""
    try:
        found = get_dataset(visit.ctx, visit.caller, dataset_id)
    except NotFound:  # deleted meanwhile
        return []
    plain = all(each.repeats == 1 and each.resolution is None for each in found.items)
    if not plain or len({each.sha256 for each in found.items}) < len(found.items) or len(found.items) > MOST_PICTURES:
        return []
    return [Picture(sha256=each.sha256, name=each.name, caption=each.caption or "") for each in found.items]


def show_pictures(visit: Visit) -> Response:
    """Show the pictures of the form, with those that were added, removed or changed by a replacement of words."""
    _require_writer(visit)
    pictures = read_pictures(visit.form)
    found, replaced = visit.form.get("find"), 0
    if visit.form.get("do") == "replace" and found:
        replaced = sum(found in each.caption for each in pictures)
        put = next((value for key, value in visit.form.pairs if key == "put"), "")
        pictures = [
            Picture(sha256=each.sha256, name=each.name, caption=each.caption.replace(found, put)) for each in pictures
        ]
    return render(visit, "train_pictures.html", **_shown(visit, pictures), replaced=replaced, picture_faults={})


def show_estimate(visit: Visit) -> Response:
    """Show what the job would cost and when it would end, or every fault."""
    _require_writer(visit)
    try:
        request = _request(visit, read_pictures(visit.form))
        found = estimate(visit.ctx, visit.caller, request)
    except InvalidInput as error:
        return render(visit, "train_estimate.html", found=None, faults=error.faults)
    return render(visit, "train_estimate.html", found=found, faults=())


def begin(visit: Visit) -> Response:
    """Submit the job, or show the form again with every fault in its place."""
    _require_writer(visit)
    pictures = read_pictures(visit.form)
    try:
        job, _ = submit(visit.ctx, visit.caller, _request(visit, pictures), visit.form.get("key") or None)
    except InvalidInput as error:
        return _page(visit, pictures, faults=error.faults, status=400)
    except GiornataError as error:
        return _page(visit, pictures, faults=[Fault(where="The job", message=error.public)], status=400)
    visit.request.app.state.wakeup.notify()
    return see(visit.url(f"/jobs/{job.id}", said="submitted"))


def send_picture(visit: Visit) -> Response:
    """Send an uploaded picture. The policy of the pages lets a browser load it from no other place."""
    sha256 = visit.path("sha256")
    if SHA256.fullmatch(sha256) is None or not visit.may(Scope.DATASETS):
        raise NotFound("there is no such picture")
    media_type, content = read_picture(visit.ctx, visit.caller, sha256, most_bytes=MOST_SHOWN_BYTES)
    kept = {"Cache-Control": "private, max-age=86400, immutable"}
    return Response(content, media_type=media_type, headers=kept)


def read_pictures(form: SubmittedForm) -> list[Picture]:
    """Return the pictures of the form in their order, each once, without the one that is removed.

    `added` is a JSON list of new ones. What cannot be a picture is left out: only a page of ours makes it.
    """
    given = zip(form.all("picture"), form.all("picture_name"), form.all("caption"), strict=False)
    found = [Picture(sha256=sha256, name=name, caption=caption) for sha256, name, caption in given]
    try:
        added = json.loads(form.get("added") or "[]")
    except json.JSONDecodeError:
        added = []
    for each in added if isinstance(added, list) else []:
        if isinstance(each, dict):
            found.append(Picture(sha256=str(each.get("sha256")), name=str(each.get("name", "")), caption=""))
    removed = form.get("remove")
    whole = {each.sha256: each for each in reversed(found) if SHA256.fullmatch(each.sha256)}
    order = dict.fromkeys(each.sha256 for each in found if each.sha256 in whole and each.sha256 != removed)
    return [whole[sha256] for sha256 in order][:MOST_PICTURES]


def read_fields(form: SubmittedForm) -> tuple[dict[str, Any], list[Fault]]:
    """Return the fields of the spec that the form sets, beginning with its preset's, and the faults of the others."""
    given: dict[str, Any] = {own: value for name, own in FIELDS.items() if (value := form.get(name))}
    faults: list[Fault] = []
    steps = given.get("max_train_steps")
    if steps is not None:
        if steps.isascii() and steps.isdigit() and len(steps) < 10:
            given["max_train_steps"] = int(steps)
        else:
            del given["max_train_steps"]
            faults.append(Fault(where="spec.max_train_steps", message="is no whole number", hint="such as 500"))
    try:
        more = json.loads(form.get("more") or "{}")
    except json.JSONDecodeError as error:
        faults.append(Fault(where="more", message=f"is not JSON: {error}", hint='such as {"rank": 32}'))
        more = {}
    if not isinstance(more, dict):
        faults.append(Fault(where="more", message="is not an object", hint='such as {"rank": 32}'))
        more = {}
    preset = form.get("preset")
    if preset and preset not in PRESETS:
        faults.append(Fault(where="preset", message="is not a preset"))
        preset = ""
    return (started_from(preset, {**given, **more}) if preset else {**given, **more}), faults


def _request(visit: Visit, pictures: Sequence[Picture]) -> SubmitJob:
    """Return the job that the form asks for; its dataset is made. Raises InvalidInput with all faults."""
    budget, dataset = None, NO_DATASET
    fields, faults = read_fields(visit.form)
    with collecting(faults):
        budget = _budget(visit.form.get("budget"))
    with collecting(faults):
        if pictures:
            dataset = create_dataset(visit.ctx, visit.caller, _items(pictures)).id
        elif "dataset" in fields:
            dataset = fields["dataset"]
        else:
            raise InvalidInput([Fault(where="pictures", message="There is no picture yet", hint="drop some")])
    if faults:
        places = {fault.where for fault in faults}
        others = parse_spec("train", {**fields, "dataset": dataset}, as_written=True)[1]
        raise InvalidInput([*faults, *(fault for fault in others if fault.where not in places)])
    try:
        return SubmitJob(
            spec={**fields, "dataset": dataset}, name=visit.form.get("name") or None, budget_micro_usd=budget
        )
    except ValidationError as error:
        found = [Fault(where=str(each["loc"][0]), message=each["msg"]) for each in error.errors()]
        raise InvalidInput(found) from None


def _items(pictures: Sequence[Picture]) -> CreateDataset:
    items, faults = [], list[Fault]()
    for each in pictures:
        try:
            caption = each.caption.strip() or None
            items.append(DatasetItem(sha256=each.sha256, name=each.name, caption=caption))
        except ValidationError as error:
            faults += [Fault(where=each.name, message=f"{one['loc'][0]}: {one['msg']}") for one in error.errors()]
    if faults:
        raise InvalidInput(faults)
    return CreateDataset(items=tuple(items))


def _budget(text: str) -> int | None:
    if not text:
        return None
    try:
        budget = micro_usd_in(text)
    except ValueError:
        budget = 0
    if budget <= 0:
        raise InvalidInput([Fault(where="budget", message="is no amount in dollars above 0", hint="such as 2.50")])
    return budget


def _page(
    visit: Visit,
    pictures: Sequence[Picture],
    *,
    faults: Sequence[Fault] = (),
    status: int = 200,
    typed: Mapping[str, str] | None = None,
    like: Job | None = None,
) -> Response:
    sorted_faults = _sorted(faults, pictures, visit.form)
    return render(
        visit,
        "train.html",
        status=status,
        typed=typed or visit.form.typed(),
        like=like,
        presets=[("", "none"), *((name, name) for name in PRESETS)],
        words={name: (preset.__doc__ or "").split("\n")[0] for name, preset in PRESETS.items()},
        faults=sorted_faults.fields,
        others=sorted_faults.others,
        picture_faults=sorted_faults.pictures,
        replaced=0,
        # The settings of a job name its base, and a page has eight statements.
        bases=registered_bases(visit) if like is None else (),
        key=visit.form.get("key") or visit.ctx.names.new("form"),
        **_shown(visit, pictures),
    )


def _shown(visit: Visit, pictures: Sequence[Picture]) -> dict[str, Any]:
    """Return the pictures with how they would be trained by the form's settings, or else by the defaults."""
    views: list[TrainedView] = []
    if pictures:
        views = view_pictures(visit.ctx, visit.caller, [each.sha256 for each in pictures], _view_spec(visit.form))
    return {"pictures": list(zip(pictures, views, strict=True)), "most": MOST_PICTURES}


def _view_spec(form: SubmittedForm) -> TrainSpec:
    needed = {"pretrained_model_name_or_path": "model", "dataset": NO_DATASET, "instance_prompt": "sks"}
    try:
        return TrainSpec.model_validate({**read_fields(form)[0], **needed})
    except (InvalidInput, ValidationError):
        return TrainSpec.model_validate(needed)


def _sorted(faults: Sequence[Fault], pictures: Sequence[Picture], form: SubmittedForm) -> SortedFaults:
    names = {each.name: each.sha256 for each in pictures}
    places = {f"spec.{own}": name for name, own in FIELDS.items()}
    places |= {"spec.model": "model", "budget": "budget", "name": "name", "more": "more", "preset": "preset"}
    at_fields, at_pictures, others = dict[str, list[str]](), dict[str, str](), list[Fault]()
    for fault in faults:
        said = said_of(fault)
        if fault.where in places:
            at_fields.setdefault(places[fault.where], []).append(said)
        elif fault.where in names:
            at_pictures[names[fault.where]] = said
        elif (found := OF_SPEC.match(fault.where)) and f'"{found[1]}"' in form.get("more"):
            hint = f" ({fault.hint})" if fault.hint else ""
            at_fields.setdefault("more", []).append(f"{fault.where.removeprefix('spec.')}: {fault.message}{hint}")
        else:
            others.append(fault)
    fields = {name: ". ".join(said) for name, said in at_fields.items()}
    return SortedFaults(fields=fields, pictures=at_pictures, others=others)


def registered_bases(visit: Visit) -> list[str]:
    """Return the names of registered base models that a form offers."""
    listed = list_models(visit.ctx, visit.caller, None, BASES)
    return [each.name for each in listed.items if each.kind is ModelKind.BASE and each.allowed is not False]


def _require_writer(visit: Visit) -> None:
    if not (visit.may(Scope.JOBS_WRITE) and visit.may(Scope.DATASETS)):
        raise NotFound("there is no such page")


ROUTES = (
    page("/projects/{project_id}/train", show),
    action("/projects/{project_id}/train", begin),
    action("/projects/{project_id}/train/pictures", show_pictures),
    action("/projects/{project_id}/train/estimate", show_estimate),
    page("/projects/{project_id}/uploaded/{sha256}", send_picture),
)
