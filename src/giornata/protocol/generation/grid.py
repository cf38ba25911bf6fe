"""Grids: one picture, or several, of each combination of some values. The cells are a function of the spec."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, JsonValue, model_validator

from giornata.protocol.generation.picture import GeneratePrompt
from giornata.protocol.generation.picture_fields import PictureChanges
from giornata.protocol.generation.specs import MAX_PICTURES, OrderFields
from giornata.protocol.model import Message

GRID_KIND = "grid"
MAX_AXES = 6
MAX_VALUES = 1000
MAX_SLOT_CHARS = 2_000_000
"""Characters of a prompt times values of its slots: a prompt is checked with each value."""
SLOT = r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*"
FIELD = re.compile(r"(?P<name>[a-z_]+)(?:\.(?P<place>\d+))?(?:\.(?P<inner>[a-z_]+))?", re.ASCII)
PROMPTS = ("prompt", "negative_prompt")
MODEL_FIELDS = frozenset({"model", "vae", "loras", "embeddings", "controlnets"})
"""Settings whose values are models: a text is the name of one."""


class GridAxis(Message):
    """One axis of a grid: a slot of the prompt, or a setting, and its values.

    The slot `animal` stands as `{animal}` in the prompt. A setting inside another is written with dots:
    `loras.0.weight`, `high_resolution.strength`.
    """

    slot: str | None = Field(None, max_length=64, pattern=rf"^{SLOT}$")
    field: str | None = Field(None, max_length=64)
    values: tuple[JsonValue, ...] = Field(min_length=1, max_length=MAX_VALUES)
    label: str | None = Field(None, max_length=128)

    @model_validator(mode="before")
    @classmethod
    def _named_models(cls, given: Any) -> Any:
        return with_named_models(given)

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if (self.slot is None) == (self.field is None):
            raise ValueError("an axis has either a slot of the prompt or a field")
        if self.field is not None:
            found = FIELD.fullmatch(self.field)
            if found is None or found["name"] not in PictureChanges.__annotations__:
                raise ValueError(f"{self.field!r} is no setting of a picture, such as seed or loras.0.weight")
        texts = str | int | float if self.slot is not None else str
        written = self.slot is not None or self.field in PROMPTS
        if written and not all(isinstance(each, texts) for each in self.values):
            raise ValueError("values that come into a prompt are texts or numbers")
        return self

    @property
    def title(self) -> str:
        """The name of the axis on a sheet."""
        return self.label or self.slot or self.field or ""

    def label_of(self, place: int) -> str:
        """Return the text of a value on a sheet."""
        value = self.values[place]
        return str(value["name"]) if isinstance(value, dict) and "name" in value else str(value)


def with_named_models(axis: Any) -> Any:
    """Return an axis as it was given, with objects for names of models, as in every other field."""
    if not isinstance(axis, dict) or not isinstance(axis.get("values"), list | tuple):
        return axis
    found = FIELD.fullmatch(str(axis.get("field") or ""))
    if found is None or found["name"] not in MODEL_FIELDS or found["inner"] is not None:
        return axis
    return {**axis, "values": [{"name": each} if isinstance(each, str) else each for each in axis["values"]]}


class GridSpec(OrderFields):
    """A picture of each combination of the axes' values. All cells of one repeat have the same seed."""

    prompt: GeneratePrompt = Field(
        description="Prompt of all cells, in the grammar of prompts. A slot is written {name}."
    )
    axes: tuple[GridAxis, ...] = Field(
        min_length=1,
        max_length=MAX_AXES,
        description="Axes of the grid: objects with slot (of the prompt) or field (of the spec), values, and label. "
        "The last axis varies fastest.",
    )

    def texts(self) -> Iterator[str]:
        """Yield every prompt, and every text that comes into one."""
        yield from super().texts()
        slots = [(axis.slot, axis.values) for axis in self.axes if axis.slot is not None]
        for text in (self.prompt, self.negative_prompt):
            yield from (written for written, _ in with_each_value(text, slots))
        for axis in self.axes:
            if axis.field in PROMPTS:
                yield from map(str, axis.values)

    @model_validator(mode="after")
    def _countable(self) -> Self:
        count = cell_count(self) * self.num_images_per_prompt
        if count > MAX_PICTURES:
            raise ValueError(f"axes make {count} pictures; at most {MAX_PICTURES} are one order")
        varied = [axis.slot or axis.field for axis in self.axes]
        if twice := sorted({str(name) for name in varied if varied.count(name) > 1}):
            raise ValueError(f"axes name {', '.join(twice)} more than once; give one axis all of its values")
        for axis in self.axes:
            if axis.slot is not None and _mark(axis.slot) not in self.prompt + self.negative_prompt:
                raise ValueError(f"axes name the slot {axis.slot}, and the prompt has no {_mark(axis.slot)}")
        chars = len(self.prompt + self.negative_prompt)
        values = sum(len(axis.values) for axis in self.axes if axis.slot is not None)
        if chars * values > MAX_SLOT_CHARS:
            raise ValueError(f"axes put {values} values into {chars} characters; at most {MAX_SLOT_CHARS} are tried")
        return self.with_prompt_loras()


def with_each_value(
    text: str, slots: Sequence[tuple[str, Sequence[object]]]
) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Yield the text with the first value of each slot, then with every other value of one slot at a time.

    Beside each text is the slot and the value that is not the first, by their places. Texts end where they have
    `MAX_SLOT_CHARS` together.
    """
    first = {slot: str(values[0]) for slot, values in slots if values and _mark(slot) in text}
    yield _filled(text, first), None
    for number, (slot, values) in enumerate(slots):
        tried = min(len(values), MAX_SLOT_CHARS // max(1, len(text)))
        for place in range(1, tried if slot in first else 0):
            yield _filled(text, {**first, slot: str(values[place])}), (number, place)


def _filled(text: str, values: Mapping[str, str]) -> str:
    for slot, value in values.items():
        text = text.replace(_mark(slot), value)
    return text


def _mark(slot: str) -> str:
    return f"{{{slot}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """One picture of a grid: its number in the order, the place on each axis, and which repeat it is."""

    number: int
    places: tuple[int, ...]
    repeat: int
    labels: tuple[str, ...]


def cell_count(spec: GridSpec) -> int:
    """Return the number of combinations of the axes' values."""
    return math.prod(len(axis.values) for axis in spec.axes)


def grid_cells(spec: GridSpec) -> Iterator[GridCell]:
    """Yield the cells in the order of their pictures: the repeats of one combination follow one another."""
    yield from (grid_cell(spec, number) for number in range(cell_count(spec) * spec.num_images_per_prompt))


def grid_cell(spec: GridSpec, number: int) -> GridCell:
    """Return the cell of the picture with this number."""
    combination, repeat = divmod(number, spec.num_images_per_prompt)
    places = _places(spec, combination)
    labels = tuple(axis.label_of(place) for axis, place in zip(spec.axes, places, strict=True))
    return GridCell(number=number, places=places, repeat=repeat, labels=labels)


def cell_changes(spec: GridSpec, shared: Mapping[str, Any], combination: int) -> dict[str, Any]:
    """Return what a combination differs in, its prompts included. `shared` is the spec as JSON.

    Raises ValueError for a setting that the spec has not, such as `loras.1.weight` of one LoRA.
    """
    changes = {name: shared[name] for name in PROMPTS}
    for axis, place in zip(spec.axes, _places(spec, combination), strict=True):
        value = axis.values[place]
        if axis.slot is not None:
            changes |= {name: _filled(changes[name], {axis.slot: str(value)}) for name in PROMPTS}
        elif axis.field is not None:
            _set(changes, shared, axis.field, value)
    return changes


def _places(spec: GridSpec, combination: int) -> tuple[int, ...]:
    places = []
    for axis in reversed(spec.axes):
        combination, place = divmod(combination, len(axis.values))
        places.append(place)
    return tuple(reversed(places))


def _set(changes: dict[str, Any], shared: Mapping[str, Any], path: str, value: object) -> None:
    """Set the value at a path such as `loras.0.weight`. Nothing of `shared` is changed."""
    found = FIELD.fullmatch(path)
    if found is None:
        raise ValueError(f"{path!r} is no setting")
    name, place, inner = found["name"], found["place"], found["inner"]
    whole = changes.get(name, shared.get(name))
    if place is None:
        changes[name] = _inside(whole, inner, value, path)
        return
    if not isinstance(whole, list | tuple) or int(place) >= len(whole):
        raise ValueError(f"{path}: the spec has no {name} number {place}, counted from 0")
    items = list(whole)
    items[int(place)] = _inside(items[int(place)], inner, value, path)
    changes[name] = items


def _inside(old: Any, inner: str | None, value: Any, path: str) -> Any:
    """Return the value, or the old object with the inner setting changed. A model keeps the weight of the old one."""
    if inner is not None:
        if not isinstance(old, Mapping):
            raise ValueError(f"{path}: the spec has no such object")
        return {**old, inner: value}
    if isinstance(old, Mapping) and isinstance(value, Mapping) and "name" in value:
        kept = {name: each for name, each in old.items() if name not in {"name", "sha256"}}
        return {**kept, **value}
    return value
