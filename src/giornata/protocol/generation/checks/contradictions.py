"""Settings of a picture that contradict each other."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from giornata.domain.errors import Fault
from giornata.protocol.generation.annotators import annotator_faults
from giornata.protocol.generation.checks.readable import Unread
from giornata.protocol.generation.expand import changes_of, picture_params
from giornata.protocol.generation.grid import GridSpec, cell_changes, grid_cell
from giornata.protocol.generation.picture import ImageFormat, PictureParams
from giornata.protocol.generation.specs import GENERATE_KIND, GenerateSpec, OrderFields

MOST_FAULTS = 100
MOST_CHARS = 500
NO_VALUES: Mapping[str, str] = MappingProxyType({})
ALL_READ = Unread()
TELLING = frozenset(
    {
        *("width", "height", "num_inference_steps", "image", "mask", "strength", "controlnets", "embeddings"),
        *("refiner", "high_resolution", "image_format", "quality", "scheduler"),
    }
)
"""Settings of an entry that may contradict others. Values of axes are looked at here for the first time."""


def order_contradictions(spec: OrderFields, unread: Unread = ALL_READ) -> list[Fault]:
    """Return the contradictions of each of an order's pictures, equal settings looked at once.

    A value of an axis that its setting cannot have is told at its own place, and so is an axis that leads nowhere;
    the other axes are looked at without it. What is `unread` contradicts nothing.
    """
    shared = spec.model_dump(mode="json")
    faults: list[Fault] = []
    numbers: list[int] = []
    if isinstance(spec, GridSpec):
        came = unread.axis_numbers(len(spec.axes))
        faults, kept = _lost_axes(spec, shared, came)
        spec = spec.model_copy(update={"axes": tuple(spec.axes[each] for each in kept)})
        numbers = [came[each] for each in kept]
    seen: set[str] = set()
    told_of_all: set[str] = set()
    for place, changes in enumerate(changes_of(spec, shared)):
        if isinstance(spec, GenerateSpec) and place - len(spec.prompts) in unread.entries:
            continue
        told = {name: value for name, value in changes.items() if name in TELLING or isinstance(spec, GridSpec)}
        if (key := json.dumps(told, sort_keys=True)) in seen:
            continue
        seen.add(key)
        where = _where(spec, place)
        values = _values_of(spec, place, numbers) if isinstance(spec, GridSpec) else {}
        for fault in _of_picture(shared, told, where, values, unread.settings - changes.keys()):
            said = f"{fault.where.removeprefix(where)} {fault.message}"
            faults += [fault] if said not in told_of_all else []
            told_of_all |= {said} if where in {"spec", "spec.axes"} else set()
        if len(faults) >= MOST_FAULTS:
            break
    return faults


def _lost_axes(spec: GridSpec, shared: dict[str, Any], came: Sequence[int]) -> tuple[list[Fault], list[int]]:
    """Return the faults of axes that lead nowhere, and the others by their places in `spec`. `came` has the place of
    each in the spec as it came."""
    faults: list[Fault] = []
    kept: list[int] = []
    for number in range(len(spec.axes)):
        axes = tuple(spec.axes[each] for each in (*kept, number))
        try:
            cell_changes(spec.model_copy(update={"axes": axes}), shared, 0)
        except ValueError as error:
            hint = "such as loras.0.weight, where the spec has a LoRA"
            faults.append(Fault(where=f"spec.axes.{came[number]}", message=str(error), hint=hint))
        else:
            kept.append(number)
    return faults, kept


def _values_of(spec: GridSpec, combination: int, numbers: list[int]) -> dict[str, str]:
    """Return the place in the spec of each value of a combination, by the setting that has it. `numbers` are those of
    the axes in the spec as it came."""
    places = grid_cell(spec, combination * spec.num_images_per_prompt).places
    axes = zip(spec.axes, numbers, places, strict=True)
    return {axis.field: f"spec.axes.{number}.values.{place}" for axis, number, place in axes if axis.field}


def _of_picture(
    shared: dict[str, Any],
    told: dict[str, Any],
    where: str,
    values: Mapping[str, str] = NO_VALUES,
    unread: frozenset[str] = frozenset(),
) -> Iterator[Fault]:
    """Yield the faults of one picture. `values` are the places of the settings that axes change."""
    try:
        changes = {"prompt": "", **told}
        params = picture_params(GENERATE_KIND, shared, seed=changes.pop("seed", 0), differs=changes)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            field = ".".join(map(str, detail["loc"]))
            message = detail["msg"].removeprefix("Value error, ")
            said = f"{field}: {message[:1].lower()}{message[1:]}; it is {detail['input']!r}"
            inside = (place for name, place in values.items() if f"{field}.".startswith(f"{name}."))
            yield Fault(where=next(inside, where), message=said[:MOST_CHARS])
        return
    yield from picture_contradictions(params, where=where, unread=unread)


def _where(spec: OrderFields, place: int) -> str:
    if isinstance(spec, GridSpec):
        return "spec.axes"
    entry = place - len(spec.prompts) if isinstance(spec, GenerateSpec) else -1
    return "spec" if entry < 0 else f"spec.pictures.{entry}"


def picture_contradictions(
    params: PictureParams, *, where: str = "spec", unread: frozenset[str] = frozenset()
) -> Iterator[Fault]:
    """Yield the contradictions between the settings of one picture, but for those with a setting that is unread."""
    fault = partial(_fault, where)
    if params.mask is not None and params.image is None and "image" not in unread:
        yield fault("mask", "has no effect without image", "give the picture to change as image")
    is_read = unread.isdisjoint({"strength", "num_inference_steps"})
    if is_read and params.image is not None and int(params.num_inference_steps * params.strength) < 1:
        message = f"{params.strength:g} of {params.num_inference_steps} steps is no step"
        yield fault("strength", message, "raise strength or num_inference_steps")
    is_png = params.image_format is ImageFormat.PNG and "image_format" not in unread
    if is_png and params.quality != PictureParams.model_fields["quality"].default:
        yield fault("quality", "has no effect on PNG files", "set image_format to jpeg or webp")
    yield from _of_second_model_and_pass(params, where, unread)
    for number, control in enumerate(params.controlnets):
        if control.start >= control.end:
            yield fault(f"controlnets.{number}.start", "is not before end", "both are shares of the steps")
        if control.annotator is None and control.annotator_params:
            yield fault(f"controlnets.{number}.annotator_params", "have no effect without annotator", "name it")
        if control.annotator is not None:
            place = f"{where}.controlnets.{number}"
            yield from annotator_faults(place, control.annotator, control.annotator_params)
    tokens = [embedding.token for embedding in params.embeddings]
    for token in sorted({each for each in tokens if tokens.count(each) > 1}):
        yield fault("embeddings", f"two of them are the word {token}", "give each a token of its own")


def _of_second_model_and_pass(params: PictureParams, where: str, unread: frozenset[str]) -> Iterator[Fault]:
    fault = partial(_fault, where)
    refiner, second = params.refiner, params.high_resolution
    if refiner is not None and not 0 < refiner.switch_at < 1:
        idle = "base" if refiner.switch_at == 0 else "refiner"
        yield fault("refiner.switch_at", f"leaves the {idle} no step", "choose a share between 0 and 1, such as 0.8")
    if refiner is not None and params.image is not None:
        yield fault("refiner", "conflicts with image", "a refiner goes on with pictures that are made of text")
    if second is None:
        return
    if refiner is not None:
        yield fault("high_resolution", "conflicts with refiner", "choose one; both begin where the base has ended")
    if params.image is not None:
        yield fault("high_resolution", "conflicts with image", "draw the image at its final size")
    is_read = unread.isdisjoint({"width", "height"})
    if is_read and second.width * second.height <= params.width * params.height:
        message = f"{second.width}×{second.height} is no larger than {params.width}×{params.height}"
        yield fault("high_resolution", message, "the second pass enlarges the first")
    steps = second.num_inference_steps or (None if "num_inference_steps" in unread else params.num_inference_steps)
    if steps is not None and int(steps * second.strength) < 1:
        yield fault("high_resolution.strength", "leaves no step", "raise strength or num_inference_steps")


def _fault(where: str, field: str, message: str, hint: str) -> Fault:
    return Fault(where=f"{where}.{field}", message=message, hint=hint)
