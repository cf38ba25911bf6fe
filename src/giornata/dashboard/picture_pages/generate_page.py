"""Generate: order pictures, watch them come, and order more like one of them or like a file."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote

from fastapi import Response
from pydantic import ValidationError

from giornata.control.jobs.reading.order_pictures import picture_file, read_order, read_picture
from giornata.control.jobs.reading.read_jobs import get_job, list_jobs
from giornata.control.jobs.submission.order_models import bring_order_models
from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.control.jobs.submission.submit import JobRequest, submit_each
from giornata.control.storage import training_view
from giornata.dashboard.forms import said_of
from giornata.dashboard.job_pages.train_page import SHA256, registered_bases
from giornata.dashboard.picture_pages.gallery_page import filters_of
from giornata.dashboard.picture_pages.grid_pages import ROWS_OF_FORM, axes_of, axis_places, typed_axes
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import SubmittedForm, Visit, action, page, see
from giornata.domain.errors import Fault, GiornataError, InvalidInput, NotFound
from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.protocol.generation.expand import changes_of, order_spec
from giornata.protocol.generation.grid import GRID_KIND
from giornata.protocol.generation.metadata import picture_params_of
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.jobs import Job, SubmitJob
from giornata.protocol.project.admin import Scope

MOST_SHOWN = 60
MOST_SHOWN_BYTES = 64 * 2**20
LORAS = 50
NAME_CHARS = 60
NUMBERS = ("width", "height", "num_inference_steps", "seed", "num_images_per_prompt")
FIELDS = ("prompts", "negative_prompt", "model", "lora", "scheduler", "guidance_scale", *NUMBERS)
"""Fields of the form; all but `lora` have the names of the spec."""


def show(visit: Visit) -> Response:
    """Show the form: empty, or with the settings of a picture of the project, or of an uploaded file."""
    _require_writer(visit)
    try:
        return _page(visit, _settings(visit))
    except InvalidInput as error:
        return _page(visit, {}, faults=error.faults, status=400)


def order(visit: Visit) -> Response:
    """Place the order, or show the form again with every fault in its place."""
    _require_writer(visit)
    try:
        request = _request(visit.form)
        parsed = bring_order_models(visit.ctx, visit.caller, request)
        key = visit.form.get("key") or None
        asked = JobRequest(caller=visit.caller, request=request, idempotency_key=key, parsed_spec=parsed)
        (answer,) = submit_each(visit.ctx, [asked])
        if isinstance(answer, GiornataError):
            raise answer
    except InvalidInput as error:
        return _page(visit, visit.form.typed(), faults=error.faults, status=400)
    except NotFound:
        raise
    except GiornataError as error:
        faults = [Fault(where="The order", message=error.public)]
        return _page(visit, visit.form.typed(), faults=faults, status=400)
    visit.request.app.state.wakeup.notify()
    placed = answer[0]
    named = {"grid" if placed.kind == GRID_KIND else "order": placed.id}
    return see(visit.url("/generate", **named, said="ordered"))


def show_order(visit: Visit) -> Response:
    """Show the pictures of an order, which the page loads again while they come."""
    found = read_order(visit.ctx, visit.caller, visit.path("job_id"), limit=MOST_SHOWN)
    done = [each for each in found.pictures if each.state == PictureState.SUCCEEDED and each.request is not None]
    return render(
        visit,
        "order_pictures.html",
        job=found.job,
        pictures=done,
        failed=[each for each in found.pictures if each.error],
        undrawn=[each for each in found.pictures if each.last_error],
        is_active=found.job.state not in TERMINAL,
        more=found.next is not None,
    )


def send_picture(visit: Visit) -> Response:
    """Send one picture of an order. The policy of the pages lets a browser load it from no other place."""
    number = visit.path("number")
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise NotFound("there is no such picture")
    job_id = visit.path("job_id")
    picture, content = picture_file(visit.ctx, visit.caller, job_id, int(number), most_bytes=MOST_SHOWN_BYTES)
    kept = {"Cache-Control": "private, max-age=86400, immutable"}
    return Response(content, media_type=picture.media_type, headers=kept)


def _settings(visit: Visit) -> Mapping[str, Any]:
    """Return the fields that the address asks for. Raises NotFound, InvalidInput for a file that tells nothing."""
    if sha256 := visit.query("file"):
        return _of_file(visit, sha256)
    job_id, number = visit.query("like"), visit.query("number")
    if job_id is None:
        return {"lora": lora} if (lora := visit.query("lora")) else {}
    job = get_job(visit.ctx, visit.caller, job_id)
    if job.kind == GRID_KIND and number is None:
        return _typed(job.spec) | typed_axes(job.spec)
    is_number = number is not None and number.isdecimal() and len(number) <= 9
    if job.kind not in {GENERATE_KIND, GRID_KIND} or number is None or not is_number:
        raise NotFound("there is no such picture")
    picture = read_picture(visit.ctx, visit.caller, job_id, int(number))
    spec = {**job.spec, **_own_settings(job, int(number)), "seed": picture.seed, "num_images_per_prompt": 1}
    return _typed(spec | ({"prompts": picture.prompt} if picture.prompt else {}))


def _own_settings(job: Job, number: int) -> Mapping[str, Any]:
    """Return the settings of a picture that are not those of its order."""
    parsed = order_spec(job.kind, job.spec)
    changes = changes_of(parsed, parsed.model_dump(mode="json"))
    return next(islice(changes, number // parsed.num_images_per_prompt, None), {})


def _of_file(visit: Visit, sha256: str) -> Mapping[str, Any]:
    if SHA256.fullmatch(sha256) is None:
        raise NotFound("there is no such picture")
    _, content = training_view.read_picture(visit.ctx, visit.caller, sha256, most_bytes=MOST_SHOWN_BYTES)
    try:
        return _typed(picture_params_of(content).fields)
    except ValueError as error:
        hint = "a PNG, JPEG or WebP file of Giornata or A1111, as it was saved"
        raise InvalidInput([Fault(where="The file", message=str(error), hint=hint)]) from None


def _typed(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return a spec as the texts of the form's fields. What the form has no field for is left out."""
    found = {name: spec[name] for name in FIELDS if spec.get(name) not in (None, "")}
    prompts = spec.get("prompts", spec.get("prompt"))
    if prompts:
        found["prompts"] = prompts if isinstance(prompts, str) else "\n".join(prompts)
    if "model" in found:
        found["model"] = _use(found["model"])
    if loras := spec.get("loras"):
        found["lora"] = ", ".join(_use(each, weighted=True) for each in loras)
    return {name: str(value) for name, value in found.items()}


def _use(use: Any, *, weighted: bool = False) -> str:
    if not isinstance(use, dict):
        return str(use)
    return f"{use['name']}:{use.get('weight', 1.0):g}" if weighted else str(use["name"])


def _request(form: SubmittedForm) -> SubmitJob:
    """Return the order of the form. Raises InvalidInput with all faults when a field cannot be read."""
    prompts = [line.strip() for line in form.get("prompts").splitlines() if line.strip()]
    faults: list[Fault] = []
    axes = axes_of(form, " ".join([*prompts, form.get("negative_prompt")]), faults)
    spec: dict[str, Any] = {"prompt": "".join(prompts[:1]), "axes": axes} if axes else {"prompts": prompts}
    if axes and len(prompts) > 1:
        hint = "write what differs as a slot, such as {who}, and make it an axis"
        faults.append(Fault(where="spec.prompt", message="a grid has one prompt", hint=hint))
    for name in (*NUMBERS, "guidance_scale"):
        if text := form.get(name):
            try:
                spec[name] = float(text) if name == "guidance_scale" else int(text)
            except ValueError:
                faults.append(Fault(where=f"spec.{name}", message="is no number"))
    spec |= {name: text for name in ("negative_prompt", "model", "scheduler") if (text := form.get(name))}
    if lora := form.get("lora"):
        spec["loras"] = [_lora(part.strip(), faults) for part in lora.split(",") if part.strip()]
    kind = GRID_KIND if axes else GENERATE_KIND
    if faults:
        raise InvalidInput([*faults, *_others(faults, kind, spec)])
    title = prompts[0][:NAME_CHARS] if prompts else None
    try:
        return SubmitJob(kind=kind, spec=spec, name=title)
    except ValidationError:
        return SubmitJob(kind=kind, spec=spec)


def _others(faults: Sequence[Fault], kind: str, spec: Mapping[str, Any]) -> list[Fault]:
    """Return what is wrong with the fields that could be read. Without an axis the prompt may lack its slots."""
    places = {fault.where for fault in faults}
    lacks_axes = any(f"{name}_{row}" in places for name in ("axis", "values") for row in ROWS_OF_FORM)
    known = places | ({"spec.axes", "spec.prompt"} if lacks_axes else set())
    return [fault for fault in parse_spec(kind, spec, as_written=True)[1] if fault.where not in known]


def _lora(text: str, faults: list[Fault]) -> dict[str, Any]:
    name, colon, weight = text.rpartition(":")
    if not colon or "/" in weight:
        return {"name": text}
    try:
        return {"name": name, "weight": float(weight)}
    except ValueError:
        faults.append(Fault(where="spec.loras", message=f"{weight[:20]!r} is no weight", hint="NAME:0.8"))
        return {"name": name}


def _page(visit: Visit, typed: Mapping[str, Any], *, faults: Sequence[Fault] = (), status: int = 200) -> Response:
    places = {f"spec.{name}": name for name in FIELDS} | {"spec.loras": "lora", "spec.prompt": "prompts"}
    places |= axis_places(typed, faults)
    beside, others = dict[str, list[str]](), list[Fault]()
    for fault in faults:
        at = (where for where in places if f"{fault.where}.".startswith(f"{where}."))
        place = places.get(max(at, key=len, default=""))
        if place is None:
            others.append(fault)
        else:
            beside.setdefault(place, []).append(said_of(fault))
    return render(
        visit,
        "generate.html",
        status=status,
        typed=typed,
        faults={name: ". ".join(said) for name, said in beside.items()},
        others=others,
        loras=_own_loras(visit),
        bases=registered_bases(visit),
        order_id=visit.query("order") or visit.query("grid"),
        shown_url=_shown_url(visit),
        axis_rows=ROWS_OF_FORM,
        has_axes=any(typed.get(f"axis_{row}") or typed.get(f"values_{row}") for row in ROWS_OF_FORM),
        given=filters_of(visit),
        gallery_url=visit.url("/gallery", **{name: text or None for name, text in filters_of(visit).items()}),
        key=visit.ctx.names.new("form"),
    )


def _shown_url(visit: Visit) -> str:
    """Return where the page loads the order's pictures from, or the sheet of the grid; empty without either."""
    if grid_id := visit.query("grid"):
        return visit.url(f"/grids/{quote(grid_id, safe='')}", row=visit.query("row"))
    order_id = visit.query("order")
    return visit.url(f"/orders/{quote(order_id, safe='')}") if order_id else ""


def _own_loras(visit: Visit) -> Sequence[Job]:
    """Return the training jobs whose LoRA the form offers."""
    if not visit.may(Scope.JOBS_READ):
        return ()
    states = (JobState.SUCCEEDED,)
    listed = list_jobs(
        visit.ctx, visit.caller, states=states, labels={}, kind="train", cursor=None, limit=LORAS, costs=False
    )
    return listed.items


def _require_writer(visit: Visit) -> None:
    if not visit.may(Scope.GENERATE):
        raise NotFound("there is no such page")


_ORDER = "/projects/{project_id}/orders/{job_id}"
ROUTES = (
    page("/projects/{project_id}/generate", show),
    action("/projects/{project_id}/generate", order),
    page(_ORDER, show_order),
    page(f"{_ORDER}/pictures/{{number}}", send_picture),
)
