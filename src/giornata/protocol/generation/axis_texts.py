"""Axes of a grid as people type them: a name, and values that are divided by commas or are a list in JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def axis_of(name: str, values: Sequence[Any], prompt: str) -> dict[str, Any]:
    """Return the axis of this name: a slot, where the prompt has `{name}`, or else a field of the spec."""
    if f"{{{name}}}" in prompt:
        return {"slot": name, "values": [each if isinstance(each, int | float) else str(each) for each in values]}
    return {"field": name, "values": [_as_json(each) for each in values]}


def axis_values(text: str) -> list[Any]:
    """Return the values in a text. Raises ValueError for one that begins as a list in JSON and is none."""
    if text.startswith("["):
        try:
            return list(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{text[:80]!r} is no list in JSON: {error}") from None
    return [each.strip() for each in text.split(",") if each.strip()]


def axis_text(axis: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the values of an axis as a person may type them: `axis_of` makes the same axis of them."""
    values = [each["name"] if set(each) == {"name"} else each for each in map(_object, axis["values"])]
    plain = all(_is_plain(each, is_field=axis.get("field") is not None) for each in values)
    text = ", ".join(map(str, values)) if plain else json.dumps(values, ensure_ascii=False)
    return str(axis.get("slot") or axis.get("field")), text


def _object(value: Any) -> Any:
    """Return a model without what it does not say; any other value in an object, to be looked at alike."""
    return {"name": value} if not isinstance(value, Mapping) else {k: v for k, v in value.items() if v is not None}


def _is_plain(value: Any, *, is_field: bool) -> bool:
    """Return True when the value survives commas: a number of a field, or a text that is nothing else."""
    if not isinstance(value, str):
        return is_field and isinstance(value, int | float) and not isinstance(value, bool)
    same = value == value.strip() and "," not in value and value != "" and not value.startswith("[")
    return same and not (is_field and _as_json(value) is not value)


def _as_json(value: Any) -> Any:
    """Return a text that is a number, true, false, null or an object as what it is; any other text as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
