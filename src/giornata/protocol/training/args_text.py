"""sd-scripts' spelling of arguments: NAME=VALUE, one after the other."""

import ast
from typing import Any

WORDS = {"true": True, "false": False}


def read(given: Any) -> Any:
    """A list of NAME=VALUE, or such text with spaces between, as a dictionary; anything else as it is."""
    parts = given.split() if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        return given
    found: dict[str, Any] = {}
    for part in parts:
        name, equals, text = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not NAME=VALUE")
        if name.strip() in found:
            raise ValueError(f"{name.strip()} is given twice; give it once")
        found[name.strip()] = _value(part, text.strip())
    return found


def _value(part: str, text: str) -> Any:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{part!r} has a value that is no number, tuple of numbers, true or false") from None
