"""`--set key=value` to fields of a spec."""

import json
from collections.abc import Sequence
from typing import Any

from giornata.domain.errors import Fault, InvalidInput


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


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
