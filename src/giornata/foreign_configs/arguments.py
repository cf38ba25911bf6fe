"""`name=value` arguments, as sd-scripts has them for networks and optimizers."""

import ast
import shlex
from typing import Any


def parse_arguments(given: Any) -> dict[str, Any]:
    """A list of `name=value`, one text of several, or a mapping. Values are Python's where they read as such."""
    if isinstance(given, dict):
        return dict(given)
    parts = shlex.split(given) if isinstance(given, str) else list(given or ())
    pairs = (str(part).partition("=") for part in parts)
    return {name.strip(): _value(text.strip()) for name, _, text in pairs if name.strip()}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)
