"""Fields of a spec in the words of the command line."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from giornata.domain.errors import Fault, InvalidInput

MODEL_NAMES = ("pretrained_model_name_or_path", "model")


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Values are JSON where they read as JSON (numbers, true, lists), and text otherwise.

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
    return {key.strip(): _value(text) for key, _, text in pairs}


def with_model_option(faults: Iterable[Fault], spec: Mapping[str, Any]) -> list[Fault]:
    """The faults of a spec, a model that is not named among them as the option that names it, and first."""
    if set(MODEL_NAMES) & spec.keys():
        return list(faults)
    hint = "a hub id such as stabilityai/stable-diffusion-xl-base-1.0, or a folder made by: giornata tiny-model DIR"
    missing = Fault(where="--model", message="no model is named", hint=hint)
    return [missing, *(fault for fault in faults if fault.where != f"spec.{MODEL_NAMES[0]}")]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
