"""Fields of a spec in the words of the command line."""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BeforeValidator

from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.model import Message
from giornata.protocol.specs import TrainSpec, canonical_names

PROSE = frozenset({"sample_prompts", "prompts"})
"""Lists whose items have commas in them."""
MODEL_NAMES = ("pretrained_model_name_or_path", "model")


def parse_assignments(assignments: Sequence[str], *, spec: type[Message] = TrainSpec) -> dict[str, Any]:
    """Values are JSON where they read as JSON (numbers, true, lists), and text otherwise. A list of the `spec` may
    also be written with commas: target_modules=to_k,to_q.

    Raises InvalidInput that lists every assignment without an equals sign or a name.
    """
    pairs = [each.partition("=") for each in assignments]
    faults = [
        Fault(where="--set", message=f"{''.join(pair)!r} is not KEY=VALUE", hint="--set rank=32")
        for pair in pairs
        if not (pair[0].strip() and pair[1])
    ]
    if faults:
        raise InvalidInput(faults)
    return {key.strip(): _as_list(spec, key.strip(), parse_value(text)) for key, _, text in pairs}


def with_model_option(faults: Iterable[Fault], spec: Mapping[str, Any]) -> list[Fault]:
    """The faults of a spec, a model that is not named among them as the option that names it, and first."""
    if set(MODEL_NAMES) & spec.keys():
        return list(faults)
    hint = "give a hub id such as stabilityai/stable-diffusion-xl-base-1.0, or a folder from: giornata tiny-model DIR"
    missing = Fault(where="--model", message="no base model is given", hint=hint)
    return [missing, *(fault for fault in faults if fault.where != f"spec.{MODEL_NAMES[0]}")]


def _as_list(spec: type[Message], key: str, value: Any) -> Any:
    """The value as a list, where the field is one and the value was written with commas or is a single item.

    A field that is no list, or that understands a text itself, gets the value as it was written.
    """
    own = next(iter(canonical_names(spec, {key: value})[0]))
    field = spec.model_fields.get(own)
    items = None if field is None or own in PROSE else _items_of(field.annotation)
    if field is None or items is None or not isinstance(value, str | int | float) or isinstance(value, bool):
        return value
    if isinstance(value, str) and "," in value:
        parts = [part.strip() for part in value.split(",") if part.strip()]
        return [parse_value(part) for part in parts] if items & {int, float} else parts
    understands_text = any(isinstance(each, BeforeValidator) for each in field.metadata)
    return value if understands_text else [value]


def _items_of(annotation: Any) -> set[Any] | None:
    """Types of a list's items, of a field that is a list or nothing; None for any other field."""
    if get_origin(annotation) in {UnionType, Union}:
        lists = [each for each in get_args(annotation) if each is not NoneType]
        return _items_of(lists[0]) if len(lists) == 1 else None
    if get_origin(annotation) not in {tuple, list}:
        return None
    return {get_args(each)[0] if get_origin(each) is Annotated else each for each in get_args(annotation)}


def parse_value(text: str) -> Any:
    """Return the JSON value that the text is, or else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
